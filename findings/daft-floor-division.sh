#!/usr/bin/env bash
# Daft: -7 // 2 is -3 for integers and -4 for floats, and the remainder fits only one of them.
#
# Guess: `//` is floor division, as in Python and as Daft's documentation calls it, so -7 // 2 is -4; and (x // y) * y + x % y is x.
# Seen with daft 0.7.26: integers are divided towards zero, floats are rounded down. `%` has the sign of the dividend in both, as in SQL. So for floats
# quotient and remainder do not belong together, and a cast of one operand to float changes the bucket of a negative value.
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

x, y = col("x"), col("y")
frame = daft.from_pydict({"x": [-7, 7, -1, 7], "y": [2, -2, 3, 2]})
expressions = [(x // y).alias("quotient"), (x % y).alias("remainder"), ((x // y) * y + x % y).alias("again")]
integers = frame.select(*expressions).to_pydict()
floats = frame.select(x.cast("float64"), y.cast("float64")).select(*expressions).to_pydict()
print("integers:", integers, "floats:", floats)
assert integers == {"quotient": [-3, -3, 0, 3], "remainder": [-1, 1, -1, 1], "again": [-7, 7, -1, 7]}
assert floats == {"quotient": [-4, -4, -1, 3], "remainder": [-1, 1, -1, 1], "again": [-9, 9, -4, 7]}
PYTHON
