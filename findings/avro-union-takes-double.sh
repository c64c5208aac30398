#!/usr/bin/env bash
# avro, fastavro: in a union of "long" and "double", the integer 2^53 + 1 is written as the double 2^53, by one or the other library.
#
# Guess: the branch of a union is chosen by the type of the Python value, so an int is the "long", and a bool the "boolean".
# Seen with avro 1.12.2 and fastavro 1.13.1: "double" accepts integers, too. avro takes the last branch that accepts the value and fastavro
# the first, so ["long", "double"] loses digits in one and ["double", "long"] in the other. For avro, "int" accepts True, which so becomes 1
# in ["boolean", "int"].
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet avro==1.12.2 fastavro==1.13.1
"$folder/venv/bin/python" - <<'PYTHON'
import io
import json

import avro.datafile
import avro.io
import avro.schema
import fastavro


def through(union, value):
    schema = {"type": "record", "name": "row", "fields": [{"name": "x", "type": union}]}
    file, other = io.BytesIO(), io.BytesIO()
    writer = avro.datafile.DataFileWriter(file, avro.io.DatumWriter(), avro.schema.parse(json.dumps(schema)))
    writer.append({"x": value})
    writer.flush()
    fastavro.writer(other, schema, [{"x": value}])
    return [next(fastavro.reader(io.BytesIO(each.getvalue())))["x"] for each in (file, other)]


exact, rounded = 2**53 + 1, float(2**53)
for union, value, first, second in (
    (["long", "double"], exact, rounded, exact),
    (["double", "long"], exact, exact, rounded),
    (["boolean", "int"], True, 1, True),
    (["int", "boolean"], True, True, True),
):
    by_avro, by_fastavro = through(union, value)
    print(union, value, "avro", repr(by_avro), "fastavro", repr(by_fastavro))
    assert (repr(by_avro), repr(by_fastavro)) == (repr(first), repr(second))
PYTHON
