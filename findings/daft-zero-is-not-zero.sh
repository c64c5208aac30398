#!/usr/bin/env bash
# Daft: -0.0 is less than 0, and no filter, group or join has it equal to 0.
#
# Guess: comparisons of floats are those of IEEE 754, as in SQL engines and in pandas, so `col("x") == 0` finds -0.0.
# Seen with daft 0.7.26: all comparisons use the total order of the bits. `x == 0` is false for -0.0 and `x < 0` is true, in expressions, in SQL,
# in `is_in`, `between`, joins and groups. The product of the integer 0 and -1.0 is such a zero, so it is lost from `product == 0`. By the same
# order NaN equals NaN and is greater than all numbers.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet daft==0.7.26 pyarrow==25.0.1
cd "$folder"
export DAFT_PROGRESS_BAR=0
"$folder/venv/bin/python" - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
import daft
from daft import col

zeros = daft.from_pydict({"name": ["0.0", "-0.0"], "x": [0.0, -0.0]})


def names(frame):
    return sorted(frame.to_pydict()["name"])


for label, frame, expected in (
    ("x == 0", zeros.where(col("x") == 0), ["0.0"]),
    ("x < 0", zeros.where(col("x") < 0), ["-0.0"]),
    ("x.is_in([0.0])", zeros.where(col("x").is_in([0.0])), ["0.0"]),
    ("x.between(0, 1)", zeros.where(col("x").between(0, 1)), ["0.0"]),
    ("SQL: x = 0", daft.sql("SELECT name FROM zeros WHERE x = 0", zeros=zeros), ["0.0"]),
    ("join with 0.0", zeros.join(daft.from_pydict({"x": [0.0]}), on="x"), ["0.0"]),
    ("abs(x) == 0", zeros.where(col("x").abs() == 0), ["-0.0", "0.0"]),
):
    print(f"{label}: {names(frame)}")
    assert names(frame) == expected
groups = zeros.groupby("x").agg(col("name").count().alias("rows")).to_pydict()["rows"]
products = daft.from_pydict({"n": [1, 0]}).select((col("n") * -1.0).alias("product"))
lost = products.where(col("product") == 0).count_rows()
print("groups:", groups, "- rows of n * -1.0 == 0 for n = 0:", lost)
assert groups == [1, 1] and lost == 0
PYTHON
