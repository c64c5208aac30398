#!/usr/bin/env bash
# pyarrow: `floor_temporal` to the second, minute or hour raises for the two hours of the year that the clocks show twice.
#
# Guess: a timestamp with a zone is an instant, so its second and its hour are known in each case; Polars' `truncate` has them.
# Seen with pyarrow 26.0.1: the local time is rounded and then looked for in the zone, where 01:30 is ambiguous, so floor, ceil and round of
# a column with one such row raise, even to 1 second. In a zone whose clocks change at midnight the day of the change raises, too: it has no
# 00:00. No option chooses. `hours_between` subtracts local hours as well: 24 between two instants that are 25 hours apart.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 polars==2.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import datetime

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc


def instants(zone, *values):
    return pa.array(values, pa.timestamp("us")).cast(pa.timestamp("us", zone))


twice = instants("America/New_York", datetime.datetime(2024, 11, 3, 5, 30), datetime.datetime(2024, 11, 3, 6, 30))
spring = instants("Asia/Beirut", datetime.datetime(2024, 3, 31, 9))
for array, number, unit, word in ((twice, 1, "second", "ambiguous"), (twice, 1, "hour", "ambiguous"), (spring, 1, "day", "does not exist")):
    for function in (pc.floor_temporal, pc.ceil_temporal if unit != "day" else pc.floor_temporal):
        try:
            function(array, number, unit)
        except pa.ArrowInvalid as error:
            print(function.__name__, unit, str(error)[:60])
            assert word in str(error)
        else:
            raise AssertionError("it no longer raises")
assert str(pc.floor_temporal(twice, 1, "day")[0].as_py()) == "2024-11-03 00:00:00-04:00"
hours = pl.from_arrow(twice).dt.truncate("1h").dt.convert_time_zone("UTC").dt.hour().to_list()
print("polars truncates to the UTC hours", hours)
assert hours == [5, 6]
ends = [instants("America/New_York", datetime.datetime(2024, 11, day, hour)) for day, hour in ((3, 4), (4, 5))]
assert pc.hours_between(*ends).to_pylist() == [24]
PYTHON
