#!/usr/bin/env bash
# Ibis: on SQLite, -7 // 2 is -4 and -7 % 2 is -1, so they do not belong together.
#
# Guess: x == x // y * y + x % y, as in Python with -4 and 1, or in SQL with -3 and -1.
# Seen with ibis-framework 11.0.0: `//` rounds down, as Python does, and `%` is SQLite's, with the sign of x. Buckets by `//` and offsets by
# `%` of negative numbers lose 2: -4 * 2 - 1 is -9.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'ibis-framework[sqlite]==11.0.0'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import ibis

connection = ibis.sqlite.connect()
rows = ibis.memtable({"x": [-7, 7]})
seen = connection.execute(rows.select(quotient=rows.x // 2, remainder=rows.x % 2, sum=rows.x // 2 * 2 + rows.x % 2))
seen = [[int(value) for value in row] for row in seen.values]
print("quotient, remainder and their sum for -7 and 7:", seen)
assert seen == [[-4, -1, -9], [3, 1, 7]]
PYTHON
