#!/usr/bin/env bash
# pandas: the difference of 5 and 3 is -2 by group, and 4294967294.0 of the column, as a float.
#
# Guess: `diff` is `x - x.shift()`, and its result, a float64 with NaN in the first row, holds -2.
# Seen with pandas 3.1.1: `diff` of unsigned integers subtracts in their type and makes a float of the wrapped difference.
# `groupby(...).diff()` and `x - x.shift()` have -2. With nullable integers all three wrap, so 100 and -100 as Int8 differ by 56; with
# Arrow's types they raise. A counter that is reset so has a jump of 4 billion.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import pandas as pd
import pyarrow as pa

for kind, wrapped in (("uint8", 254), ("uint32", 2**32 - 2), ("uint64", 2.0**64)):
    x = pd.Series([5, 3], dtype=kind)
    seen = x.diff().iloc[1], x.groupby([1, 1]).diff().iloc[1], (x - x.shift()).iloc[1]
    print(kind, "column, group, shift:", *seen)
    assert seen == (wrapped, -2, -2)
    assert x.diff().dtype == "float64"
x = pd.Series([100, -100], dtype="Int8")
assert x.diff().iloc[1] == x.groupby([1, 1]).diff().iloc[1] == 56
assert pd.Series([100, -100], dtype="int8").diff().iloc[1] == -200
try:
    pd.Series([5, 3], dtype="uint8[pyarrow]").diff()
except pa.ArrowInvalid as error:
    print("Arrow's type:", error)
else:
    raise AssertionError("it no longer raises")
PYTHON
