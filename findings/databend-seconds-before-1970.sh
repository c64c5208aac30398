#!/usr/bin/env bash
# Databend: `date_trunc` to the second, minute or hour of 1969-12-31 23:59:59.5 is 1970-01-01 00:00:00.
#
# Guess: `date_trunc` rounds down, to the beginning of the interval, before 1970 as after.
# Seen with databend 1.2.453: fractions of a second are cut off towards zero first, which before 1970 is up, so 12:30:30.5 is 12:30:31, and
# the last half second of an hour is in the next hour, of a year in the next year. `date_trunc` to the day and the cast to DATE are right,
# so that the hour and the day of one time disagree.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet databend==1.2.453 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import os
import tempfile

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    from databend import SessionContext

    session = SessionContext()
    seen = {}
    for time in ("1969-12-31 23:59:59.5", "1969-12-31 12:30:30.5", "2020-12-31 23:59:59.5"):
        calls = ", ".join(f"date_trunc({unit}, '{time}'::timestamp)::string" for unit in ("second", "hour", "day"))
        (row,) = session.sql(f"select {calls}").to_arrow_table().to_pylist()
        seen[time] = [value[:19] for value in row.values()]
        print(time, "second, hour, day:", seen[time])
    os.chdir("/")
assert list(seen.values()) == [
    ["1970-01-01 00:00:00", "1970-01-01 00:00:00", "1969-12-31 00:00:00"],
    ["1969-12-31 12:30:31", "1969-12-31 12:00:00", "1969-12-31 00:00:00"],
    ["2020-12-31 23:59:59", "2020-12-31 23:00:00", "2020-12-31 00:00:00"],
]
PYTHON
