#!/usr/bin/env bash
# sqlite-vec: by cosine, a zero vector is the nearest neighbour of every query, at the distance NULL.
#
# Guess: a zero vector has no direction, so it is left out of a search by cosine, or comes last; conditions in WHERE hold before the k
# nearest rows are taken, or all of them after.
# Seen with sqlite-vec 0.1.9: the distance of a zero vector is NULL, which sorts first, so k = 1 finds it and nothing else. `distance > 0.5`
# holds before the k rows are taken, `rowid > 1` after, so k = 2 gives one row. An UPDATE of a rowid is no error and changes nothing.
# `vec_add` of int8 vectors wraps around: 127 and 1 are -128. A FLOAT column of metadata refuses the integer 1.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet sqlite-vec==0.1.9 apsw==3.54.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import apsw
import sqlite_vec

connection = apsw.Connection(":memory:")
connection.enable_load_extension(True)
connection.load_extension(sqlite_vec.loadable_path())


def expect(query, *expected):
    rows = connection.execute(query).fetchall()
    print(query, "->", rows)
    assert rows == list(expected)


expect("CREATE VIRTUAL TABLE c USING vec0(v float[2] distance_metric=cosine)")
expect("INSERT INTO c(rowid, v) VALUES (1, '[0, 0]'), (2, '[1, 0]'), (3, '[-1, 0]')")
expect("SELECT rowid, distance FROM c WHERE v MATCH '[1, 0]' AND k = 1", (1, None))
expect("SELECT rowid, distance FROM c WHERE v MATCH '[1, 0]' AND k = 3", (1, None), (2, 0.0), (3, 2.0))

expect("CREATE VIRTUAL TABLE e USING vec0(v float[2], f float)")
expect("INSERT INTO e(rowid, v, f) VALUES (1, '[0, 0]', 0.5), (2, '[1, 0]', 0.5), (3, '[3, 4]', 0.5)")
expect("SELECT rowid FROM e WHERE v MATCH '[0, 0]' AND k = 2 AND distance > 0.5", (2,), (3,))
expect("SELECT rowid FROM e WHERE v MATCH '[0, 0]' AND k = 2 AND rowid > 1", (2,))
expect("UPDATE e SET rowid = 9 WHERE rowid = 1")
expect("SELECT rowid FROM e ORDER BY rowid", (1,), (2,), (3,))
expect("SELECT vec_to_json(vec_add(vec_int8('[127, 0]'), vec_int8('[1, 0]')))", ("[-128,0]",))
try:
    expect("INSERT INTO e(rowid, v, f) VALUES (4, '[0, 0]', 1)")
except apsw.SQLError as error:
    print(error)
else:
    raise AssertionError("no error")
PYTHON
