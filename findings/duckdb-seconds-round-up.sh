#!/usr/bin/env bash
# DuckDB: 23:59:59.5 of New Year's Eve is the next year as TIMESTAMP_S, and the same instant of 1969 is not.
#
# Guess: a cast to a coarser timestamp cuts off, as `date_trunc` and the cast to DATE do, and as Polars does (pyarrow refuses).
# Seen with duckdb 2.0.1: TIMESTAMP_S and TIMESTAMP_MS round half away from zero, of the count since 1970, so later times go up, times
# before 1970 stay or go down. `epoch_ms` rounds, too. TIMESTAMP_NS is rounded to microseconds even by DATE and `date_trunc`, so one
# nanosecond before midnight belongs to the next day; only `epoch_us` cuts it off.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb

for given, seconds, floor in (
    ("2020-12-31 23:59:59.5", "2021-01-01 00:00:00", "2020-12-31 23:59:59"),
    ("1969-12-31 23:59:59.5", "1969-12-31 23:59:59", "1969-12-31 23:59:59"),
):
    ((*row,),) = duckdb.sql(
        f"select (t::timestamp_s)::text, date_trunc('second', t)::text, (t::timestamp_s)::date - t::date from (select timestamp '{given}' t)"
    ).fetchall()
    print(given, "as TIMESTAMP_S", row[0], "by date_trunc", row[1], "days between", row[2])
    assert row == [seconds, floor, int(seconds.startswith("2021"))]
((*row,),) = duckdb.sql(
    "select t::timestamp::text, t::date::text, date_trunc('day', t)::date::text, epoch_us(t), epoch_ms(timestamp '2020-12-31 23:59:59.9999')"
    " from (select timestamp_ns '2020-12-31 23:59:59.999999999' t)"
).fetchall()
print("one nanosecond before midnight", row)
assert row == ["2021-01-01 00:00:00", "2021-01-01", "2021-01-01", 1609459199999999, 1609459200000]
PYTHON
