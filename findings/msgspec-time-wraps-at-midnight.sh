#!/usr/bin/env bash
# msgspec: a time of day with seven or more digits just before midnight becomes 00:00:00, almost a day earlier.
#
# Guess: digits beyond microseconds are cut, as `datetime.fromisoformat` does, or an error says that they do not fit.
# Seen with msgspec 0.23.0: they are rounded. For a datetime the rounding carries over into the next day, which is right. For a time
# there is no day to carry into, and the latest time of a day becomes the earliest. A nanosecond clock writes such values.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet msgspec==0.23.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import datetime

import msgspec


def decode(text, kind):
    return msgspec.json.decode(f'"{text}"', type=kind)


time = decode("23:59:59.9999999", datetime.time)
moment = decode("2024-12-31T23:59:59.9999999Z", datetime.datetime)
of_python = datetime.time.fromisoformat("23:59:59.9999999")
print("time:", time, "datetime:", moment, "time of Python:", of_python)
assert time == datetime.time(0, 0, 0)
assert moment == datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc)
assert of_python == datetime.time(23, 59, 59, 999999)
PYTHON
