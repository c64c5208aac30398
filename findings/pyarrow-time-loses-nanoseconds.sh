#!/usr/bin/env bash
# pyarrow: a time of day with nanoseconds is an error in Python, and loses them without a word once pandas is installed.
#
# Guess: `as_py` and `to_pylist` of a value whose nanoseconds Python cannot hold raise, for times of a day as for timestamps and durations.
# With pandas all three are exact, or all raise: an installed package does not change a value.
# Seen with pyarrow 26.0.1: without pandas all three raise ValueError. With pandas 2.3.3 or 3.1.1, timestamps and durations become pandas'
# Timestamp and Timedelta, which are exact, and 01:02:03.000000999 becomes datetime.time(1, 2, 3). `cast` to microseconds refuses it,
# with and without pandas, as `to_pandas` does.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/read.py" <<'PYTHON'
import sys

import pyarrow as pa

types = {"time": pa.time64("ns"), "timestamp": pa.timestamp("ns"), "duration": pa.duration("ns")}
read = {}
for name, type_ in types.items():
    values = pa.array([3_723_000_000_999], type_)
    try:
        (read[name],) = map(str, values.to_pylist())
    except ValueError as error:
        read[name] = type(error).__name__
try:
    cast = str(pa.array([3_723_000_000_999], types["time"]).cast(pa.time64("us"))[0])
except pa.ArrowInvalid as error:
    cast = type(error).__name__
print(f"{sys.argv[1]}: {read}; the time cast to microseconds: {cast}")
with_pandas = {"time": "01:02:03", "timestamp": "1970-01-01 01:02:03.000000999", "duration": "0 days 01:02:03.000000999"}
assert read == (with_pandas if "pandas" in sys.argv[1] else dict.fromkeys(types, "ValueError")), read
assert cast == "ArrowInvalid", cast
PYTHON

for packages in "pyarrow==26.0.1" "pyarrow==26.0.1 pandas==2.3.3" "pyarrow==26.0.1 pandas==3.1.1"; do
  rm -rf "$folder/venv"
  python3 -m venv "$folder/venv"
  read -ra names <<<"$packages"
  "$folder/venv/bin/pip" install --quiet "${names[@]}"
  "$folder/venv/bin/python" "$folder/read.py" "$packages"
done
