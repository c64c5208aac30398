#!/usr/bin/env bash
# DataFusion: before 1970, a cast to seconds rounds up and `date_trunc('second')` down; to milliseconds both round up.
#
# Guess: fractions are cut off downwards by each of them, so that 23:59:59.5 is 23:59:59 whichever is used.
# Seen with datafusion 55.0.0: casts, `to_timestamp_seconds` and `to_unixtime` divide towards zero, so the last half second of 1969 is 1970
# and unix time 0; so does `date_trunc` to the millisecond and microsecond, but not to the second and coarser units, nor `date_bin` or a
# cast to DATE.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datafusion==55.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import datafusion

session = datafusion.SessionContext()
time, fine = "timestamp '1969-12-31 23:59:59.5'", "timestamp '1969-12-31 23:59:59.9995'"
calls = {
    "cast": f"arrow_cast({time}, 'Timestamp(Second, None)')",
    "to_timestamp_seconds": f"to_timestamp_seconds({time})",
    "date_trunc to milliseconds": f"date_trunc('millisecond', {fine})",
    "date_trunc to seconds": f"date_trunc('second', {time})",
    "date_bin": f"date_bin(interval '1 second', {time})",
}
for name, call in calls.items():
    ((seen,),) = session.sql(f"select {call}::varchar v").to_pydict().values()
    print(name, seen)
    assert seen == ("1969-12-31T23:59:59" if name in ("date_trunc to seconds", "date_bin") else "1970-01-01T00:00:00")
((count,), (date,)) = session.sql(f"select to_unixtime({time}) a, ({time})::date::varchar b").to_pydict().values()
assert count == 0 and date == "1969-12-31"
PYTHON
