#!/usr/bin/env bash
# pyarrow: a safe cast of a DECIMAL to a greater scale wraps around at 2^127, and gives another number without an error.
#
# Guess: a cast is safe by default, so a value that the new type cannot hold is an error, as it is for most values:
# "Decimal value does not fit in precision 38".
# Seen with pyarrow 26.0.1: the check of the product is whether it became smaller, or has too many digits. A product
# beyond 127 bits that wrapped to a large one of at most 38 digits passes both, so -2^63 as DECIMAL(38, 38) is
# -0.0634..., and 2^62 as DECIMAL(38, 30) is 23413272.9. Integers that are cast at once are refused, and DuckDB refuses all four.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 duckdb==2.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from decimal import Decimal

import duckdb
import pyarrow as pa

wrapped = 0
for number, precision, scale in ((-(2**63), 38, 38), (2**62, 38, 30), (2**62, 38, 31), (20, 38, 37)):
    type_ = pa.decimal128(precision, scale)
    values = pa.array([Decimal(number)], pa.decimal128(19, 0))
    try:
        result = values.cast(type_)[0].as_py()
    except pa.ArrowInvalid as error:
        result = error
    else:
        wrapped += result != number
    print(f"{number} as {type_}: {result}")
    try:
        duckdb.sql(f"SELECT CAST({number} AS DECIMAL({precision}, {scale}))").fetchall()
    except duckdb.Error as error:
        print("  DuckDB:", str(error).splitlines()[0])
    else:
        raise SystemExit("DuckDB does not raise any more")
assert wrapped == 2, wrapped
try:
    pa.array([2**62], pa.int64()).cast(pa.decimal128(38, 30))
except pa.ArrowInvalid as error:
    print("an integer:", error)
else:
    raise SystemExit("a cast of an integer does not raise any more")
PYTHON
