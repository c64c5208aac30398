#!/usr/bin/env bash
# Dask: the key -0.0 matches 0.0 in a merge or not, and counts as another value, by how the rows lie in partitions.
#
# Guess: the number of partitions is a matter of speed, and Dask has one zero, as pandas has.
# Seen with dask 2026.8.0: keys are hashed by their bits to choose a partition, in which pandas then has one zero. So a merge of two frames of several
# partitions loses the rows of -0.0, a merge with a frame of one partition keeps them, and `nunique` and `value_counts` have two zeros if both are
# in different partitions. `groupby` has one.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "dask[dataframe]==2026.8.0" pandas==2.3.3 pyarrow==25.0.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import dask.dataframe
import pandas as pd

left = pd.DataFrame({"key": [0.0, -0.0, 0.0, 1.0]})
right = pd.DataFrame({"key": [0.0, 1.0, 2.0, 3.0], "name": ["zero", "one", "two", "three"]})
for partitions, merged, values, counts in ((1, 4, 2, [1, 3]), (4, 3, 3, [1, 1, 2])):
    many = dask.dataframe.from_pandas(left, npartitions=partitions)
    other = dask.dataframe.from_pandas(right, npartitions=partitions)
    joined = many.merge(other, on="key", shuffle_method="tasks").compute()
    single = many.merge(dask.dataframe.from_pandas(right, npartitions=1), on="key").compute()
    seen = len(joined), many["key"].nunique().compute(), sorted(many["key"].value_counts().compute())
    groups = many.groupby("key").size().compute()
    print(f"{partitions} partitions: rows of the merge {seen[0]}, with one partition {len(single)}, nunique {seen[1]}, counts {seen[2]}, groups {len(groups)}")
    assert seen == (merged, values, counts) and len(single) == 4 and len(groups) == 2
PYTHON
