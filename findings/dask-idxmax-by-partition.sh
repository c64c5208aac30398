#!/usr/bin/env bash
# Dask: `idxmax` by group is the row of the first partition, wherever the maximum is.
#
# Guess: the partitions give their best row with its value, and the best of them is the result, as for `max` and for `idxmax` of the column.
# Seen with dask 2026.8.0: with one partition it is right. With more, the row of the first partition that has the group is the result, for `idxmax`
# and for `idxmin`. `max` and `min` of the same group are right, and so is `idxmax` of the column.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "dask[dataframe]==2026.8.0" pandas==2.3.3 pyarrow==25.0.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import dask.dataframe
import pandas as pd

frame = pd.DataFrame({"key": 0, "x": [1, 5, 2, 9, 3, 0]})
for partitions, expected in ((1, (3, 5)), (2, (1, 0)), (3, (1, 0)), (6, (0, 0))):
    distributed = dask.dataframe.from_pandas(frame, npartitions=partitions)
    group = distributed.groupby("key")["x"]
    seen = group.idxmax().compute()[0], group.idxmin().compute()[0]
    column = distributed["x"].idxmax().compute(), distributed["x"].idxmin().compute()
    greatest = group.max().compute()[0]
    print(f"{partitions} partitions: idxmax and idxmin by group {tuple(map(int, seen))}, of the column {tuple(map(int, column))}, max {greatest}")
    assert seen == expected and column == (3, 5) and greatest == 9
PYTHON
