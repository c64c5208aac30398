#!/usr/bin/env bash
# ClickHouse: the day of 1950-03-01 is 2129-08-05 by `toDate` and 1970-01-01 by `toStartOfDay`.
#
# Guess: a DateTime64, which reaches back to 1900, keeps its day in each function that takes one, or raises.
# Seen with chdb 4.4.0 (ClickHouse 26.9): the results are Date and DateTime, which begin in 1970. `toDate` and `toDateTime` wrap around, the
# toStartOf functions stop at 1970, and from 2106 on at 2106-02-07; so all older rows are in one hour and one day. `date_trunc('hour', t)`,
# `toDate32` and `toYYYYMM` are right. Settings change it: date_time_overflow_behavior = 'throw' makes the casts raise.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chdb==4.4.0 chdb-core==26.9.0
"$folder/venv/bin/python" - <<'PYTHON'
import chdb


def ask(time, *functions):
    calls = ", ".join(f"{function}" if "(" in function else f"{function}(t)" for function in functions)
    return str(chdb.query(f"SELECT {calls} FROM (SELECT toDateTime64('{time}', 0, 'UTC') t)", "TSV")).strip().split("\t")


names = ("toDate", "toStartOfDay", "toStartOfHour", "date_trunc('hour', t)", "toDate32", "toYYYYMM")
old, late = ask("1950-03-01 22:59:59", *names), ask("2106-03-01 22:59:59", "toStartOfDay")
print(dict(zip(names, old, strict=True)), "2106:", late)
assert old[:3] == ["2129-08-05", "1970-01-01 00:00:00", "1970-01-01 00:00:00"]
assert old[3:] == ["1950-03-01 22:00:00", "1950-03-01", "195003"]
assert late == ["2106-02-07 06:28:15"]
try:
    chdb.query("SELECT toDate(toDateTime64('1950-03-01 00:00:00', 0, 'UTC')) SETTINGS date_time_overflow_behavior = 'throw'")
except RuntimeError as error:
    print(str(error)[:100])
else:
    raise AssertionError("the setting no longer makes it raise")
PYTHON
