#!/usr/bin/env bash
# delta-rs: 1.7 that is appended to a column of BIGINT becomes 1; a text or an integer that is too large is an error.
#
# Guess: a frame whose column has another type is an error, as for texts, or is cast if nothing is lost, as integers are that fit.
# Seen with deltalake 1.6.6: floats are cast to the integers of the table and cut off, by `append` and by `update`. A frame whose
# identifiers pandas has made floats, for a missing value, fits so, and a price does, too. pyarrow's `cast` refuses it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==25.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

with tempfile.TemporaryDirectory() as folder:
    write_deltalake(folder, pa.table({"x": [1]}))
    write_deltalake(folder, pa.table({"x": [1.7, -1.7]}), mode="append")
    values = sorted(DeltaTable(folder).to_pyarrow_table()["x"].to_pylist())
    print("after appending 1.7 and -1.7:", values)
    assert values == [-1, 1, 1]
    DeltaTable(folder).update({"x": "2.9"})
    assert set(DeltaTable(folder).to_pyarrow_table()["x"].to_pylist()) == {2}
    try:
        write_deltalake(folder, pa.table({"x": ["a"]}), mode="append")
    except Exception as error:
        print(type(error).__name__, str(error)[:80])
    else:
        raise AssertionError("a text could be appended")
try:
    pa.array([1.7]).cast(pa.int64())
except pa.ArrowInvalid as error:
    print("pyarrow:", error)
else:
    raise AssertionError("pyarrow cuts, too")
PYTHON
