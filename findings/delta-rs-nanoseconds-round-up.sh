#!/usr/bin/env bash
# delta-rs: one nanosecond before 1970 is 1970; one nanosecond before 2024 is 2023.
#
# Guess: nanoseconds, which Delta does not have, are refused, as pyarrow's cast does, or cut off to the microsecond before.
# Seen with deltalake 1.6.6: they are divided towards zero, so times before 1970 are rounded up, into the next microsecond and at the end of
# a day into the next day, while later ones are rounded down. The order of two times can become equality, without an error.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==25.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

year = 1704067200 * 10**9
for count, seen in ((-1, "1970-01-01 00:00:00"), (-1001, "1969-12-31 23:59:59.999999"), (year - 1, "2023-12-31 23:59:59.999999")):
    with tempfile.TemporaryDirectory() as folder:
        write_deltalake(folder, pa.table({"t": pa.array([count], pa.timestamp("ns"))}))
        (back,) = DeltaTable(folder).to_pyarrow_table()["t"].to_pylist()
    print(count, "is", back)
    assert str(back.replace(tzinfo=None)) == seen
try:
    pa.array([-1], pa.timestamp("ns")).cast(pa.timestamp("us"))
except pa.ArrowInvalid as error:
    print("pyarrow:", error)
else:
    raise AssertionError("pyarrow cuts, too")
PYTHON
