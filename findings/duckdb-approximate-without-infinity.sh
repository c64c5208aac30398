#!/usr/bin/env bash
# DuckDB: `approx_quantile` leaves out infinities, so the 90th percentile of 1, inf, inf is 1.
#
# Guess: it is near `quantile_cont`, which has infinity as a value, as t-digests in other engines do; the share 0 is the minimum and 1 the
# maximum.
# Seen with duckdb 2.0.1: infinities and NaN are dropped, and a group of nothing else is NULL. The largest and smallest values of many are
# means of several: of 0, ..., 1,000,000 the shares 0 and 1 are not the ends.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import math

import duckdb

duckdb.sql("set threads = 1")


def ask(function, values):
    return duckdb.sql(f"select {function} from ({values}) t(x)").fetchall()[0][0]


values = "values (1.0::double), ('inf'), ('inf')"
exact, near = ask("quantile_cont(x, 0.9)", values), ask("approx_quantile(x, [0, 0.5, 0.9, 1])", values)
print("exact", exact, "approximate", near)
assert exact == math.inf and near == [1, 1, 1, 1]
assert ask("approx_quantile(x, 0.5)", "values ('inf'::double), ('nan')") is None
ends = ask("approx_quantile(x, [0, 1])", "from range(1000001)")
print("ends of 0, ..., 1,000,000", ends)
assert ends[0] > 0 or ends[1] < 1000000
PYTHON
