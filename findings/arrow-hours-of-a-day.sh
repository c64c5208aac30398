#!/usr/bin/env bash
# arrow: a day of 25 hours has 24 hours in `range` and `span_range`, and the spans of them leave one hour out.
#
# Guess: the spans of the hours between two instants cover the time between them, on the day of the change of the clocks, too.
# Seen with arrow 1.4.0: the steps are taken by the clock, so the second hour from 2 to 3 is in no span; values of that hour belong to none
# of the spans in which they are counted. On the day of 23 hours there are 23. In UTC all is right.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet arrow==1.4.0 tzdata==2025.2
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from datetime import timedelta

from arrow import Arrow

seen = {}
for month, day in ((10, 26), (10, 27), (3, 31)):
    start = Arrow(2024, month, day, tzinfo="Europe/Berlin")
    end = start.shift(days=1)
    spans = list(Arrow.span_range("hour", start, end.shift(microseconds=-1)))
    seen[day] = (end.to("UTC") - start.to("UTC")) // timedelta(hours=1), len(spans)
    print(f"{start.date()} in Berlin: {seen[day][0]} hours, {seen[day][1]} spans")
    if day == 27:
        half_hours = [Arrow(2024, 10, 27, hour, 30) for hour in range(3)]
        found = [any(first <= instant <= last for first, last in spans) for instant in half_hours]
        print("00:30, 01:30 and 02:30 UTC are in a span:", found)
        assert found == [True, False, True]
assert seen == {26: (24, 24), 27: (25, 24), 31: (23, 23)}
PYTHON
