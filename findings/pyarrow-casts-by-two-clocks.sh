#!/usr/bin/env bash
# pyarrow: a cast of a timestamp with a time zone reads the local clock or UTC, by the type that it is cast to.
#
# Guess: a cast to a type without a zone drops the zone, so date, time, text and timestamp of one value show the same clock; and a date that
# is cast to a timestamp with a zone and back is the same date.
# Seen with pyarrow 26.0.1: DATE, TIME and text are those of the local clock, TIMESTAMP is that of UTC. So `t.cast(date32())` and
# `t.cast(timestamp("us")).cast(date32())` are two dates. In the other direction a date is midnight in UTC, also where the zone is New York:
# the date comes back as the day before, by safe casts, without an error. A list of datetimes follows its first: if that has no zone,
# the others become UTC without one, and otherwise a datetime without a zone is read as UTC.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 tzdata==2026.6
"$folder/venv/bin/python" - <<'PYTHON'
import datetime as dt
from zoneinfo import ZoneInfo

import pyarrow as pa

NEW_YORK = pa.timestamp("us", "America/New_York")
t = pa.array([dt.datetime(2024, 1, 15, 1, 30, tzinfo=dt.timezone.utc)]).cast(NEW_YORK)
seen = {str(kind): t.cast(kind)[0].as_py() for kind in (pa.date32(), pa.time64("us"), pa.string(), pa.timestamp("us"))}
print(seen)
assert seen == {
    "date32[day]": dt.date(2024, 1, 14),
    "time64[us]": dt.time(20, 30),
    "string": "2024-01-14 20:30:00.000000-0500",
    "timestamp[us]": dt.datetime(2024, 1, 15, 1, 30),
}
two_steps = t.cast(pa.timestamp("us")).cast(pa.date32())[0].as_py()
print("as timestamp, then as date:", two_steps)
assert two_steps == dt.date(2024, 1, 15)
back = pa.array([dt.date(2024, 1, 15)]).cast(NEW_YORK).cast(pa.date32())[0].as_py()
print("2024-01-15 to New York and back:", back)
assert back == dt.date(2024, 1, 14)
noon, noon_there = dt.datetime(2024, 1, 15, 12), dt.datetime(2024, 1, 15, 12, tzinfo=ZoneInfo("America/New_York"))
for datetimes, kind, hours in (([noon, noon_there], pa.timestamp("us"), [12, 17]), ([noon_there, noon], NEW_YORK, [12, 7])):
    array = pa.array(datetimes)
    print(array.type, [value.hour for value in array.to_pylist()])
    assert array.type == kind and [value.hour for value in array.to_pylist()] == hours
PYTHON
