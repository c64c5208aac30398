#!/usr/bin/env bash
# pandas: the minimum of a row of a NaN and a missing value is infinity, with Arrow's types.
#
# Guess: `min(axis=1)` of a row without a number is NaN or NA, as with float64, and as it is if both are missing.
# Seen with pandas 3.1.1: it is inf, and `max(axis=1)` is -inf, if a row of double[pyarrow] has a NaN and an NA and no number. A row of nothing
# but NA is NA, and a NaN beside a number is skipped. A NaN in a Parquet file stays one in columns of this type. The greatest of the
# rows' minima is then infinite.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/file" <<'PYTHON'
import math
import sys

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

ratio = pa.array([math.nan, math.nan, None])
parquet.write_table(pa.table({"ratio": ratio, "other": pa.array([None, 2.0, None])}), sys.argv[1])
for kind, options in (("double[pyarrow]", {"dtype_backend": "pyarrow"}), ("float64", {})):
    frame = pd.read_parquet(sys.argv[1], **options)
    assert set(map(str, frame.dtypes)) == {kind}
    least, greatest = frame.min(axis=1), frame.max(axis=1)
    print(f"{kind}: rows {frame.values.tolist()}, min {least.tolist()}, max {greatest.tolist()}, max of mins {least.max()}")
    assert least[1] == greatest[1] == 2.0
    assert pd.isna(least[2]) and pd.isna(greatest[2])
    if kind == "float64":
        assert math.isnan(least[0]) and math.isnan(greatest[0])
    else:
        assert (least[0], greatest[0], least.max()) == (math.inf, -math.inf, math.inf)
PYTHON
