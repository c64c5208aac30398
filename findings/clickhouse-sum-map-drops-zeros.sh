#!/usr/bin/env bash
# ClickHouse: `sumMap` of arrays drops the keys whose sum is zero, `sumMap` of a Map keeps them.
#
# Guess: the keys of the result are all keys of the input, as for `maxMap`, and the same function over a Map has the same keys.
# Seen with chdb 4.4.0 (ClickHouse 26.9): an account whose bookings cancel out is not among the sums, and one of only zeros neither; after
# merging states it is lost, too. So the number of keys and the averages over them change. `maxMap` and `minMap` keep zeros.
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


arrays = "values('k Array(Int32), v Array(Int32)', ([1, 2], [1, 5]), ([1], [-1]))"
maps = "values('m Map(Int32, Int32)', (map(1, 1, 2, 5)), (map(1, -1)))"
seen = {
    "arrays": ask(f"SELECT sumMap(k, v) FROM {arrays}")[0],
    "merged": ask(f"SELECT sumMapMerge(s) FROM (SELECT sumMapState(k, v) s FROM {arrays} GROUP BY length(k))")[0],
    "maximum": ask("SELECT maxMap(k, v) FROM values('k Array(Int32), v Array(Int32)', ([1, 2], [0, 5]))")[0],
    "map": ask(f"SELECT sumMap(m) FROM {maps}")[0],
}
print(seen)
assert seen == {"arrays": [[2], [5]], "merged": [[2], [5]], "maximum": [[1, 2], [0, 5]], "map": {"1": 0, "2": 5}}
PYTHON
