#!/usr/bin/env bash
# lmdb: in a database with duplicates, `replace` returns one value of a key and deletes all of them.
#
# Guess: with dupsort=True, `replace(key, value)` exchanges the first value, which it returns, as `pop` removes only the one that it
# returns; or it adds one, as `put` does.
# Seen with lmdb 3.0.0: of the values 1, 2, 3 it returns 1 and leaves only the new one, in a cursor, too, so 2 and 3 are lost without having
# been returned. `pop` leaves 2 and 3.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lmdb==3.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import tempfile

import lmdb

with tempfile.TemporaryDirectory() as folder:
    with lmdb.open(folder, max_dbs=1) as environment:
        database = environment.open_db(b"d", dupsort=True)

        def after(act):
            with environment.begin(write=True, db=database) as transaction:
                transaction.drop(database, delete=False)
                for value in (b"1", b"2", b"3"):
                    transaction.put(b"k", value)
                result = act(transaction)
                return result, [value for _, value in transaction.cursor()]

        seen = {
            "replace": after(lambda transaction: transaction.replace(b"k", b"9")),
            "cursor.replace": after(lambda transaction: transaction.cursor().replace(b"k", b"9")),
            "pop": after(lambda transaction: transaction.pop(b"k")),
            "put": after(lambda transaction: transaction.put(b"k", b"9")),
        }
for name, (result, left) in seen.items():
    print(name, "returns", result, "leaves", left)
assert seen["replace"] == seen["cursor.replace"] == (b"1", [b"9"])
assert seen["pop"] == (b"1", [b"2", b"3"]) and seen["put"] == (True, [b"1", b"2", b"3", b"9"])
PYTHON
