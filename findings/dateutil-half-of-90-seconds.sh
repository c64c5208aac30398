#!/usr/bin/env bash
# dateutil: half of 90 seconds is 15 seconds, and half of a day is nothing.
#
# Guess: a `relativedelta` times 0.5, or divided by a number of values for an average, is half of it, at least for days and smaller units.
# Seen with python-dateutil 4.0.0: 90 seconds are kept as 1 minute and 30 seconds, each unit is multiplied by itself and cut to an integer,
# and nothing is carried to the smaller unit. `relativedelta(days=1.5)` is possible, and times 1 it is 1 day. The average of 1 day and 2
# days is 1 day.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet python-dateutil==4.0.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from dateutil.relativedelta import relativedelta

seen = {
    "90 seconds * 0.5": relativedelta(seconds=90) * 0.5,
    "1 day / 2": relativedelta(days=1) / 2,
    "1.5 days * 1": relativedelta(days=1.5) * 1,
    "the average of 1 day and 2 days": (relativedelta(days=1) + relativedelta(days=2)) / 2,
    "1 month * 0.5": relativedelta(months=1) * 0.5,
}
for label, value in seen.items():
    print(label, "is", value)
assert list(seen.values()) == [
    relativedelta(seconds=15),
    relativedelta(),
    relativedelta(days=1),
    relativedelta(days=1),
    relativedelta(),
]
PYTHON
