#!/usr/bin/env bash
# delta-rs: in a column that partitions the table, an empty text comes back as NULL, and bytes come back as other bytes.
#
# Guess: partitioning changes where rows are stored, not their values; what cannot be a partition value is refused when it is written.
# Seen with deltalake 1.6.6: Delta's protocol has the empty text for NULL, so '' is read as NULL. `DELETE WHERE p = ''` still deletes the row that
# reads as NULL, and a table with '' and NULL has two partitions that look the same. BINARY is written as the text of escapes that the
# protocol names, and read as the bytes of that text: two bytes become twelve. The same table without partitions is right.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake


def written(name, values, type_, by):
    write_deltalake(name, pa.table({"p": pa.array(values, type_), "i": range(len(values))}), partition_by=by)
    table = DeltaTable(name)
    return table, table.to_pyarrow_table().sort_by("i")["p"].to_pylist()


for place, (values, type_, expected) in enumerate([
    (["", None, "a"], pa.string(), [None, None, "a"]),
    ([b"\xff\x00"], pa.binary(), [b"\\u00FF\\u0000"]),
]):
    _, plain = written(f"plain{place}", values, type_, None)
    table, read = written(f"parts{place}", values, type_, ["p"])
    print(f"{values}: {plain} without partitions, {read} with")
    assert plain == values and read == expected
    if "" in values:
        deleted = table.delete("p = ''")["num_deleted_rows"]
        print("DELETE WHERE p = '' deletes", deleted, "row, and leaves", table.to_pyarrow_table()["p"].to_pylist())
        assert deleted == 1
PYTHON
