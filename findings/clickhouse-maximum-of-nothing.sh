#!/usr/bin/env bash
# ClickHouse: merged by `maxSimpleState`, the maximum of -5 and of nothing is 0; by `maxState` it is -5.
#
# Guess: the state of an aggregate over no rows changes nothing when it is merged, whichever kind of state it is.
# Seen with chdb 4.4.0 (ClickHouse 26.9): a SimpleState is the finished result, and that of `max` and `min` over no rows is 0. A
# materialized view with maxSimpleStateIf, or a shard without a row, so puts a 0 into the maximum of negative values, and into the minimum
# of positive ones. Over Nullable columns it is NULL and harmless.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chdb==4.4.0 chdb-core==26.9.0
"$folder/venv/bin/python" - <<'PYTHON'
import json

import chdb


def ask(sql):
    (row,) = json.loads(str(chdb.query(sql, "JSONCompact")))["data"]
    return row


some, none = "values('x Int32', -5)", "values('x Int32', -5) WHERE x > 9"
sql = f"""SELECT max(simple), maxMerge(state) FROM (
    SELECT maxSimpleState(x) simple, maxState(x) state FROM {some} UNION ALL SELECT maxSimpleState(x), maxState(x) FROM {none})"""
print("simple, full:", ask(sql))
assert ask(sql) == [0, -5]
condition = f"SELECT max(s) FROM (SELECT maxSimpleState(x) s FROM {some} UNION ALL SELECT maxSimpleStateIf(x, x > 9) FROM {some})"
five = "FROM values('x Int32', 5)"
smallest = f"SELECT min(s) FROM (SELECT minSimpleState(x) s {five} UNION ALL SELECT minSimpleState(x) {five} WHERE x > 9)"
assert ask(condition) == ask(smallest) == [0]
assert ask(smallest.replace("Int32", "Nullable(Int32)")) == [5]
PYTHON
