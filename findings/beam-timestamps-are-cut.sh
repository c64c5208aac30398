#!/usr/bin/env bash
# Beam: Timestamp(1.001) is 1.000999, so it is in the window [1.0, 1.001).
#
# Guess: a timestamp that is given in seconds with three decimals is that number of milliseconds.
# Seen with apache-beam 2.77.0: seconds are multiplied by a million and cut, and 1.001 * 1000000 is 1000999.9999999999. Of all numbers of
# milliseconds in the first ten seconds, some two hundred are a microsecond early, and so in the window before. Micros as integers are exact.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apache-beam==2.77.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from apache_beam.transforms.window import FixedWindows, TimestampedValue, WindowFn
from apache_beam.utils.timestamp import Duration, Timestamp

early = [n for n in range(10_000) if Timestamp(n / 1000).micros != n * 1000]
(window,) = FixedWindows(Duration(micros=1000)).assign(WindowFn.AssignContext(Timestamp(1.001)))
value = TimestampedValue("x", 1.001)
print(Timestamp(1.001), Duration(1.001), window, value.timestamp, f"{len(early)} of 10,000 are early")
assert Timestamp(1.001).micros == Duration(1.001).micros == value.timestamp.micros == 1_000_999
assert window.end == Timestamp(micros=1_001_000) and len(early) > 50
PYTHON
