#!/usr/bin/env bash
# SQLite: an aggregate class in Python over no rows gives its own result by APSW, and NULL by the sqlite3 of the standard library.
#
# Guess: both hand the class to the same sqlite3_create_function, so a class with 0 as its first state gives 0 over no rows, in both.
# Seen with apsw 3.54.1.0 and the sqlite3 of Python 3.11: sqlite3 makes an object at the first row, so there is none to ask; `finalize` is
# not called, and the result is NULL. APSW makes one at the end. Over an empty group of FILTER it is the same.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apsw==3.54.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sqlite3
import sys

import apsw


class Total:
    def __init__(self):
        self.total = 0

    def step(self, value):
        self.total += value

    def finalize(self):
        return self.total

    final = finalize


with_sqlite3, with_apsw = sqlite3.connect(":memory:"), apsw.Connection(":memory:")
with_sqlite3.create_aggregate("total_of", 1, Total)
with_apsw.create_aggregate_function("total_of", Total, 1)
print("Python", sys.version.split()[0], "SQLite", sqlite3.sqlite_version, "and", apsw.sqlite_lib_version())
for query, expected in (
    ("SELECT total_of(x) FROM (SELECT 1 AS x)", (1, 1)),
    ("SELECT total_of(x) FROM (SELECT 1 AS x) WHERE x > 1", (None, 0)),
    ("SELECT total_of(x) FILTER (WHERE x > 1) FROM (SELECT 1 AS x)", (None, 0)),
):
    seen = (with_sqlite3.execute(query).fetchone()[0], with_apsw.execute(query).fetchone()[0])
    print(f"{query}: sqlite3 {seen[0]}, APSW {seen[1]}")
    assert seen == expected
PYTHON
