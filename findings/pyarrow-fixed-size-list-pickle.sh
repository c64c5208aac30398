#!/usr/bin/env bash
# pyarrow: a type of lists of a fixed size comes back from a pickle with other items.
#
# Guess: a type that is pickled and read again is the same type.
# Seen with pyarrow 26.0.1: `list_(field, n)` is pickled as the type of its items and n, so that they may be NULL again, have the name
# "item" and no metadata. Lists of any size are pickled with their field. A schema, and a table by pickle protocol 5, change likewise.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import pickle

import pyarrow as pa

field = pa.field("x", pa.float32(), nullable=False, metadata={"unit": "m"})
for type_, same in ((pa.list_(field), True), (pa.large_list(field), True), (pa.list_(field, 3), False)):
    read = pickle.loads(pickle.dumps(type_))
    print(f"{type_} becomes {read}")
    assert (read == type_) is same
schema = pa.schema([("v", pa.list_(field, 3))])
assert pickle.loads(pickle.dumps(schema)) != schema
PYTHON
