#!/usr/bin/env bash
# pendulum: a month that was pickled is 30 days, so a month after 31 January is another day.
#
# Guess: a duration comes back from pickle as it was, as it does from `copy.deepcopy`, and both are equal.
# Seen with pendulum 3.3.0: years and months are not pickled, only their days are, of which a month has 30 and a year 365. `==` compares
# days, so a test finds the two equal. Half of a month is nothing, and `abs` of it the timedelta of 30 days. Workers and checkpoints pickle.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pendulum==3.3.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import copy
import pickle

import pendulum

month, day = pendulum.duration(months=1), pendulum.datetime(2024, 1, 31)
seen = {
    "a month": month,
    "copied": copy.deepcopy(month),
    "pickled": pickle.loads(pickle.dumps(month)),
    "half": month / 2,
}
for label, duration in seen.items():
    print(f"{label}: after 2024-01-31 {(day + duration).to_date_string()}, {duration.months} months, equal {duration == month}")
ends = [(day + duration).to_date_string() for duration in seen.values()]
assert ends == ["2024-02-29", "2024-02-29", "2024-03-01", "2024-01-31"], ends
assert (day + abs(month)).to_date_string() == "2024-03-01"
assert seen["pickled"] == month and seen["pickled"].months == 0
PYTHON
