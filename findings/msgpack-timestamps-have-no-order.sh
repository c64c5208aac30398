#!/usr/bin/env bash
# msgpack: Timestamp.from_unix(1.001) has 999999 nanoseconds, and the larger of two timestamps is a TypeError.
#
# Guess: a timestamp of 1.001 s has 1,000,000 nanoseconds, and timestamps are ordered as their numbers.
# Seen with msgpack 1.2.4: the fraction of a float is cut to nanoseconds, so two fifths of all milliseconds are one nanosecond or, near
# today, up to 120 early. Timestamps are equal or not, and have no order, so `max` and `sorted` fail. By default they are what `unpackb`
# returns; as datetimes they lose nanoseconds without a word.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet msgpack==1.2.4
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import msgpack
from msgpack import Timestamp

early = sum(Timestamp.from_unix(n / 1000).nanoseconds % 1000 != 0 for n in range(10_000))
print(Timestamp.from_unix(1.001), Timestamp.from_unix(1700000000.1), f"{early} of 10,000 milliseconds are not whole microseconds")
assert Timestamp.from_unix(1.001).nanoseconds == 999999 and Timestamp.from_unix(1700000000.1).nanoseconds == 99999904 and early > 1000
try:
    larger = max(Timestamp(0, 1), Timestamp(0, 2))
except TypeError as error:
    larger = error
print(larger)
assert isinstance(larger, TypeError)
time = msgpack.unpackb(msgpack.packb(Timestamp(0, 123456789)), timestamp=3)
print(time)
assert time.microsecond == 123456
PYTHON
