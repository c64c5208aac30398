#!/usr/bin/env bash
# pyarrow: a table without columns keeps its number of rows, except where it does not.
#
# Guess: a table that was projected to no columns (what COUNT(*) needs) has its rows everywhere, or nowhere.
# Seen with pyarrow 26.0.1: `select([])`, `slice(1, 2)`, `filter`, `combine_chunks`, IPC and the C data interface are right. `concat_tables`
# and `take` of a table, and Parquet, make it 0, while `take` of the same record batch is right; `slice(1)` does not slice.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq

table = pa.table({"x": [1, 2, 3]}).select([])
batch = pa.record_batch({"x": [1, 2, 3]}).select([])


def through_ipc():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def through_parquet():
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return pq.read_table(pa.BufferReader(sink.getvalue()))


seen = {
    "select([])": table.num_rows,
    "slice(1)": table.slice(1).num_rows,
    "slice(1) of a batch": batch.slice(1).num_rows,
    "slice(1, 2)": table.slice(1, 2).num_rows,
    "filter": table.filter(pa.array([True, False, True])).num_rows,
    "combine_chunks": table.combine_chunks().num_rows,
    "IPC": through_ipc().num_rows,
    "C data interface": pa.table(table).num_rows,
    "take of a batch": batch.take(pa.array([0, 2])).num_rows,
    "take": table.take([0, 2]).num_rows,
    "concat_tables with itself": pa.concat_tables([table, table]).num_rows,
    "Parquet": through_parquet().num_rows,
}
print(seen)
assert list(seen.values()) == [3, 3, 2, 2, 2, 3, 3, 3, 2, 0, 0, 0]
PYTHON
