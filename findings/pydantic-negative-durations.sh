#!/usr/bin/env bash
# pydantic: the text of the timedelta of -23 hours, "-1 day, 1:00:00", is read as -25 hours.
#
# Guess: `timedelta` is read from what `str` of a timedelta writes, or the text is an error.
# Seen with pydantic 2.14.4: the sign is taken for all of the text, so a day and an hour are subtracted; in Python's text the hours are
# added to the day. Texts of positive durations come back right, and so do the ISO texts that pydantic writes itself. Months are 30 days and
# years 365, without a word.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pydantic==2.14.4
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from datetime import timedelta

from pydantic import TypeAdapter

adapter = TypeAdapter(timedelta)
hours = {}
for written in (timedelta(hours=25), timedelta(hours=-23), timedelta(minutes=-1)):
    read = adapter.validate_python(str(written))
    hours[written] = read / timedelta(hours=1)
    print(f"{str(written)!r}, which is {written / timedelta(hours=1):.2f} hours, is read as {hours[written]:.2f} hours")
    assert adapter.validate_json(adapter.dump_json(written)) == written
assert [round(h, 2) for h in hours.values()] == [25, -25, -47.98]
assert adapter.validate_python("P1M") == timedelta(days=30)
PYTHON
