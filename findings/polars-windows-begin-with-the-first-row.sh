#!/usr/bin/env bash
# Polars: `group_by_dynamic` with overlapping windows leaves out the windows that begin before the first row, though they contain it.
#
# Guess: with every="1d" and period="2d" each row is in two windows, as in Spark's `window` and in Beam and Flink, also the first one.
# Seen with polars 2.1.0: the first window is the one of the first row, truncated. A row of 2 January 01:00 is in the window from 1 January
# only if an earlier row is in the frame, of the same day. So the sums over all windows depend on where the data begins, and two halves do
# not add up to the whole. With closed="both" a row at midnight is in one window, if it is the first, and in two otherwise.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import datetime

import polars as pl


def windows(*days, hour=1, **options):
    times = [datetime.datetime(2020, 1, day, hour) for day in days]
    frame = pl.DataFrame({"t": times, "x": [1] * len(times)}).group_by_dynamic("t", every="1d", **options).agg(pl.sum("x"))
    return {time.day: count for time, count in frame.rows()}


alone, after = windows(2, 3, period="2d"), windows(1, 2, 3, period="2d")
print("2 and 3 January", alone, "1 to 3 January", after)
assert alone == {2: 2, 3: 1} and after == {1: 2, 2: 2, 3: 1}
both = windows(2, 3, hour=0, closed="both")
print("midnights, closed on both sides", both)
assert both == {2: 2, 3: 1}
PYTHON
