#!/usr/bin/env bash
# avro: the decimal 1.2 in a column of scale 2 is written as 0.12, and 10 as 0.10 or 0.01.
#
# Guess: a decimal with fewer digits after the point than the column is padded, as fastavro and Spark do; one with more digits than the
# precision is an error.
# Seen with avro 1.12.2: the digits are written and the exponent is forgotten, so 1.2 is 0.12, Decimal("10") is 0.10 and Decimal("1E+1") is
# 0.01. Decimal("-0.00") is -0.02. 123.45 in four digits is written, and read as 123.4. fastavro and Polars read the same wrong numbers, so
# the file is wrong. `quantize` before writing makes it right, except for zero.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet avro==1.12.2 fastavro==1.13.1
"$folder/venv/bin/python" - <<'PYTHON'
import io
import json
from decimal import Decimal

import avro.datafile
import avro.io
import avro.schema
import fastavro

kind = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
schema = {"type": "record", "name": "row", "fields": [{"name": "x", "type": kind}]}


def write(value):
    file = io.BytesIO()
    writer = avro.datafile.DataFileWriter(file, avro.io.DatumWriter(), avro.schema.parse(json.dumps(schema)))
    writer.append({"x": value})
    writer.flush()
    return file.getvalue()


for given, seen in (("1.20", "1.20"), ("1.2", "0.12"), ("10", "0.10"), ("1E+1", "0.01"), ("-0.00", "-0.02"), ("123.45", "123.4")):
    file = write(Decimal(given))
    (row,) = avro.datafile.DataFileReader(io.BytesIO(file), avro.io.DatumReader())
    (other,) = fastavro.reader(io.BytesIO(file))
    print(given, "is read by avro as", row["x"], "and by fastavro as", other["x"])
    assert row["x"] == other["x"] == Decimal(seen)
file = io.BytesIO()
fastavro.writer(file, schema, [{"x": Decimal("1.2")}])
(row,) = fastavro.reader(io.BytesIO(file.getvalue()))
assert row["x"] == Decimal("1.20")
PYTHON
