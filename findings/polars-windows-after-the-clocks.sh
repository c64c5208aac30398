#!/usr/bin/env bash
# Polars: after the clocks change, `group_by_dynamic` has other windows than `truncate`, and than itself over later rows only.
#
# Guess: with every="2h", a row's window is its time truncated to 2 hours, whatever other rows there are; this is what makes results of
# two runs comparable.
# Seen with polars 2.1.0: the first window is truncated, and each next one starts 2 hours of real time later. Over a change of the clocks
# the starts move from even hours to odd ones, and stay there for the rest of the data. 12:30 is in the window from 12:00 if the data starts after
# the change, as `truncate` says, and in the one from 11:00 if it starts before. A window of `every="1h"` or "1d" is not affected.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 tzdata==2026.6
"$folder/venv/bin/python" - <<'PYTHON'
import datetime as dt

import polars as pl


def starts(first, every):
    times = pl.datetime_range(first, dt.datetime(2024, 10, 27, 20, 30), "30m", time_zone="UTC", eager=True)
    rows = pl.DataFrame({"t": times.dt.convert_time_zone("Europe/Berlin")})
    dynamic = rows.group_by_dynamic("t", every=every).agg(pl.len())["t"]
    truncated = rows["t"].dt.truncate(every).unique().sort()
    return [list(x.filter(x.dt.day() == 27).dt.strftime("%H").tail(5)) for x in (dynamic, truncated)]


for name, first in (("data from the day before", dt.datetime(2024, 10, 26)), ("data after the change", dt.datetime(2024, 10, 27, 9))):
    for every in ("2h", "1h"):
        dynamic, truncated = starts(first, every)
        print(f"{name}, every {every}: group_by_dynamic {dynamic}, truncate {truncated}")
        if every == "2h":
            assert truncated == ["12", "14", "16", "18", "20"]
        moved = every == "2h" and first.day == 26
        assert dynamic == (["13", "15", "17", "19", "21"] if moved else truncated)
PYTHON
