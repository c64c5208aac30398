#!/usr/bin/env bash
# NumPy, pandas, ClickHouse: the quantile 0.5 of 1, inf, inf is NaN, and NumPy's and pandas' median is inf.
#
# Guess: between two equal neighbours a quantile is this neighbour, and `median` is the quantile 0.5.
# Seen with numpy 2.4.6, pandas 3.1.1 and chdb 4.4.0 (ClickHouse 26.9): they interpolate by a + (b - a) * t, and inf - inf is NaN, also
# where t is 0. So a column whose upper half is infinite has no quantile, and no `describe`; by group, pandas has one only where t is 0.
# pyarrow, Polars and DuckDB have inf.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 pandas==3.1.1 chdb==4.4.0 chdb-core==26.9.0 pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import math
import warnings

import chdb
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

warnings.simplefilter("ignore")
values = [1.0, math.inf, math.inf]
group = pd.DataFrame({"k": 1, "x": values}).groupby("k")["x"]
seen = {
    "numpy": float(np.quantile(values, 0.5)),
    "pandas": float(pd.Series(values).quantile(0.5)),
    "pandas, 0.75 by group": group.quantile(0.75).item(),
    "ClickHouse": float(str(chdb.query("SELECT quantile(0.5)(x) FROM values('x Float64', 1, inf, inf)", "CSV"))),
    "pyarrow": pc.quantile(pa.array(values), 0.5)[0].as_py(),
    "polars": pl.Series(values).quantile(0.5, "linear"),
    "duckdb": duckdb.sql("select quantile_cont(x, 0.5) from (values ('1'::double), ('inf'), ('inf')) t(x)").fetchall()[0][0],
}
print(seen)
for name, value in seen.items():
    assert math.isnan(value) if name.startswith(("numpy", "pandas", "Click")) else value == math.inf, name
assert np.median(values) == pd.Series(values).median() == group.quantile(0.5).item() == math.inf
assert math.isnan(pd.Series(values).describe()["50%"])
PYTHON
