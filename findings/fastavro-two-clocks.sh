#!/usr/bin/env bash
# fastavro: a datetime without a zone is the local time in Berlin for "timestamp-millis", and comes back an hour earlier, with UTC.
#
# Guess: a datetime without a zone is refused for a logical type that is an instant, as the library avro does, or taken as UTC, as Arrow and
# Polars do.
# Seen with fastavro 1.13.1: the time zone of the process decides: with TZ=Europe/Berlin, 12:00 is written as 11:00 UTC, and with TZ=UTC as
# 12:00 UTC, so a fleet writes other files than a laptop. "local-timestamp-millis" drops the zone of a datetime that has one, in the other
# direction: 12:00 in New York is 12:00.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet fastavro==1.13.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime
import io
import os
import time
import zoneinfo

import fastavro


def through(logical, value):
    file = io.BytesIO()
    kind = {"type": "long", "logicalType": logical}
    fastavro.writer(file, {"type": "record", "name": "row", "fields": [{"name": "x", "type": kind}]}, [{"x": value}])
    return next(fastavro.reader(io.BytesIO(file.getvalue())))["x"].isoformat()


for zone, seen in (("UTC", "2024-01-15T12:00:00+00:00"), ("Europe/Berlin", "2024-01-15T11:00:00+00:00")):
    os.environ["TZ"] = zone
    time.tzset()
    back = through("timestamp-millis", datetime.datetime(2024, 1, 15, 12))
    print("TZ", zone, "12:00 is", back)
    assert back == seen
local = through("local-timestamp-millis", datetime.datetime(2024, 1, 15, 12, tzinfo=zoneinfo.ZoneInfo("America/New_York")))
print("local-timestamp of 12:00 in New York", local)
assert local == "2024-01-15T12:00:00"
PYTHON
