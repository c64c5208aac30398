#!/usr/bin/env bash
# delta-rs: DELETE deletes a NaN or keeps it, by the numbers that happen to be in its file.
#
# Guess: `DELETE WHERE x > 1` always deletes NaN, which is the largest number in the engine inside, or never does.
# Seen with deltalake 1.6.6: the statistics of a file leave NaN out, and a file whose maximum is 0.5 is skipped with its NaN. Beside a 2.0, or in
# a file without other numbers, which has no statistics, NaN is deleted. So one compaction changes what the next DELETE does, and a job
# that erases "everything but 0.5" leaves a NaN beside a 0.5.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

NAN = float("nan")


def left(condition, *files):
    """Delete in a table with these files, each with the values of one commit."""
    for place, values in enumerate(files):
        write_deltalake("t", pa.table({"x": values}), mode="append" if place else "overwrite")
    table = DeltaTable("t")
    table.delete(condition)
    return sorted(map(str, table.to_pyarrow_table()["x"].to_pylist()))


found = {
    "x > 1, NaN beside 0.5": left("x > 1", [0.5, NAN], [2.0]),
    "x > 1, NaN beside 2.0": left("x > 1", [0.5], [2.0, NAN]),
    "x > 1, NaN alone": left("x > 1", [0.5], [2.0], [NAN]),
    "x <> 0.5, NaN beside 0.5": left("x <> 0.5", [0.5, NAN], [2.0]),
    "x <> 0.5, NaN beside 2.0": left("x <> 0.5", [0.5], [2.0, NAN]),
}
for case, rows in found.items():
    print(f"DELETE WHERE {case} leaves {rows}")
assert list(found.values()) == [["0.5", "nan"], ["0.5"], ["0.5"], ["0.5", "nan"], ["0.5"]]
PYTHON
