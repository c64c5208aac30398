#!/usr/bin/env bash
# pyarrow: an ORC file with 9999-12-31 is written, and then cannot be read.
#
# Guess: a timestamp in microseconds comes back in microseconds, as from Parquet; what cannot be read is refused when it is written.
# Seen with pyarrow 26.0.1: each timestamp is read in nanoseconds, which end in 2262, so the usual "no end" is an error for all rows of the
# file, whatever unit was written. Other columns can be read. A time zone comes back as UTC.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime
import io

import pyarrow as pa
import pyarrow.orc as orc


def through(table, **options):
    file = io.BytesIO()
    orc.write_table(table, file)
    return orc.read_table(io.BytesIO(file.getvalue()), **options)


near = pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("us", "Europe/Berlin"))
print(near.type, "comes back as", through(pa.table({"t": near}))["t"].type)
assert through(pa.table({"t": near}))["t"].type == pa.timestamp("ns", "UTC")
for unit in ("s", "us"):
    far = pa.table({"k": [1], "t": pa.array([datetime.datetime(9999, 12, 31)], pa.timestamp(unit))})
    try:
        through(far)
    except pa.ArrowInvalid as error:
        print(unit, error)
    else:
        raise AssertionError("it can be read")
    assert through(far, columns=["k"])["k"].to_pylist() == [1]
PYTHON
