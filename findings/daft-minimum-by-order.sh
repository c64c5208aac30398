#!/usr/bin/env bash
# Daft: the minimum of a NaN and 1 in a group depends on which is first, and its maximum, too.
#
# Guess: a group of all rows has the aggregates of the column.
# Seen with daft 0.7.26: `min` and `max` of a column have NaN as the greatest, so they are 1 and NaN. In `groupby` both begin with the first value
# and replace it by a smaller or greater one, which a NaN never is and beside which none is: NaN, 1 gives 1 and 1, and 1, NaN gives NaN twice, while
# 1, NaN, 0.5 has 0.5 twice. A window over the group has 1 and NaN, as the column.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet daft==0.7.26 pyarrow==25.0.1
cd "$folder"
export DAFT_PROGRESS_BAR=0
"$folder/venv/bin/python" - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
import daft
from daft import Window, col

nan = float("nan")
x = col("x")
aggregates = [x.min().alias("least"), x.max().alias("greatest")]
whole = Window().partition_by("key")


def shown(frame):
    row = frame.to_pylist()[0]
    return f"{row['least']:g} {row['greatest']:g}"


for values, column, group in (
    ([nan, 1.0], "1 nan", "1 1"),
    ([1.0, nan], "1 nan", "nan nan"),
    ([1.0, nan, 0.5], "0.5 nan", "0.5 0.5"),
    ([nan, 2.0, 1.0], "1 nan", "1 2"),
):
    frame = daft.from_pydict({"key": [0] * len(values), "x": values})
    window = frame.select(x.min().over(whole).alias("least"), x.max().over(whole).alias("greatest"))
    seen = shown(frame.agg(*aggregates)), shown(frame.groupby("key").agg(*aggregates)), shown(window)
    print(f"{values}: min and max of the column {seen[0]}, of the group {seen[1]}, of the window {seen[2]}")
    assert seen == (column, group, column)
PYTHON
