#!/usr/bin/env bash
# Lance: an update that swaps two columns makes them equal, and it is chance to which of the two.
#
# Guess: `update({"a": "b", "b": "a"})` swaps, as UPDATE t SET a = b, b = a does in SQL: each expression reads the old row.
# Seen with pylance 14.0.2 and lancedb 0.40.0: the columns are set one after another, each expression reads what was set before, and the order
# is that of a hash map with a random seed. With three columns there are more than two outcomes. So an update of a column that another one of the
# same update reads has to be two updates.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pylance==14.0.2 lancedb==0.40.0 pyarrow==25.0.1
cd "$folder"
"$folder/venv/bin/python" - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
from collections import Counter

import lance
import lancedb
import pyarrow as pa

ROW = pa.table({"a": [1], "b": [2]})
database = lancedb.connect("database")
seen = {"lance": Counter(), "lancedb": Counter()}
for number in range(40):
    dataset = lance.write_dataset(ROW, f"dataset{number}")
    dataset.update({"a": "b", "b": "a"})
    table = database.create_table(f"table{number}", ROW)
    table.update(values_sql={"a": "b", "b": "a"})
    for name, rows in (("lance", dataset.to_table()), ("lancedb", table.to_arrow())):
        seen[name][tuple(rows.to_pylist()[0].values())] += 1
for name, outcomes in seen.items():
    print(f"{name}: (1, 2) after the swap, of 40: {dict(outcomes)}")
    assert set(outcomes) == {(1, 1), (2, 2)}
PYTHON
