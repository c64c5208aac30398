#!/usr/bin/env bash
# pandas, Polars: the median of a column of one time in nanoseconds is another time; its maximum is not.
#
# Guess: the mean and median of equal times are this time; a median of an odd number is a value of the column.
# Seen with pandas 3.1.1 and polars 2.1.0: times are averaged as float64, which has multiples of 256 nanoseconds today, so mean, median and
# quantiles, also in `describe`, are up to 128 nanoseconds beside each value, and a comparison with them finds no row. In Polars
# microseconds after 2255 are off as well. DuckDB is exact.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 numpy==2.4.6 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime

import duckdb
import pandas as pd
import polars as pl

count = 1714979289123456789
times = pd.Series(pd.to_datetime([count]))
assert times.dtype == "datetime64[ns]"
seen = {name: getattr(times, name)().value - count for name in ("mean", "median", "quantile", "max")}
group = times.groupby([1])
by_group = {name: getattr(group, name)().iloc[0].value - count for name in ("mean", "median", "quantile", "max")}
column = pl.Series([count]).cast(pl.Datetime("ns"))
polars = {name: pl.select(getattr(pl.lit(column), name)().dt.epoch("ns")).item() - count for name in ("mean", "median", "max")}
((exact,),) = duckdb.sql(f"select epoch_ns(median(make_timestamp_ns({count})))").fetchall()
print("pandas", seen, "by group", by_group, "polars", polars, "duckdb", exact - count)
assert list(seen.values()) == list(by_group.values()) == [-21, -21, -21, 0]
assert list(polars.values()) == [-21, -21, 0] and exact == count
late = datetime.datetime(2300, 1, 1, 0, 0, 0, 123457)
assert pl.Series([late]).mean() == late - datetime.timedelta(microseconds=1)
PYTHON
