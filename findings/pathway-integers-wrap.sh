#!/usr/bin/env bash
# Pathway: a sum of integers wraps around to a negative one, and the average with it.
#
# Guess: the type of a column is Python's `int`, so 2^62 + 2^62 is 2^63 or an error, and the average, a float, is right.
# Seen with pathway 0.33.0: integers are 64-bit ones and wrap around in `sum`, `+` and `<<` without an error. The average divides the wrapped sum.
# That of the same values as floats is right.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pathway==0.33.0 pandas==2.3.3 pyarrow==25.0.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
import pandas as pd
import pathway

table = pathway.debug.table_from_pandas(pd.DataFrame({"key": [0, 0], "x": [2**62, 2**62]}))
group = table.groupby(table.key).reduce(
    total=pathway.reducers.sum(table.x),
    average=pathway.reducers.avg(table.x),
    right=pathway.reducers.avg(pathway.cast(float, table.x)),
)
rows = pathway.debug.table_to_pandas(group, include_id=False).to_dict("records")
doubled = pathway.debug.table_to_pandas(table.select(sum=table.x + table.x, shifted=table.x << 1), include_id=False).to_dict("records")
print(rows, doubled[0])
assert rows == [{"total": -(2**63), "average": -(2.0**62), "right": 2.0**62}]
assert doubled[0] == {"sum": -(2**63), "shifted": -(2**63)}
PYTHON
