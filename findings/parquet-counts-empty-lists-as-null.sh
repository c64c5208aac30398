#!/usr/bin/env bash
# Parquet: an empty list counts as one NULL and one value in the statistics of its column.
#
# Guess: the null count of a column of lists is that of the NULLs among the items, or among the lists; [] and [1] have none.
# Seen with pyarrow 26.0.1: an empty list, a list that is NULL and an item that is NULL count the same, for the format counts places without
# an item. So a table that has no NULL anywhere has null counts, and `num_values` is neither the number of rows nor that of items. A check
# of completeness that reads only the footer is wrong for lists and maps.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import os
import tempfile

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "t.parquet")
    for lists in ([[], [1]], [None, [1]], [[None], [1]]):
        pq.write_table(pa.table({"x": pa.array(lists, pa.list_(pa.int64()))}), path)
        column = pq.ParquetFile(path).metadata.row_group(0).column(0)
        ((lists_null, items_null),) = duckdb.sql(
            f"select count(*) - count(x), coalesce(sum(len(list_filter(x, lambda i: i is null))), 0) from '{path}'"
        ).fetchall()
        print(lists, "null count", column.statistics.null_count, "values", column.num_values, "NULLs", lists_null, items_null)
        assert column.statistics.null_count == 1 and column.num_values == 2
        assert (lists_null, items_null) == {"[[], [1]]": (0, 0), "[None, [1]]": (1, 0), "[[None], [1]]": (0, 1)}[str(lists)]
PYTHON
