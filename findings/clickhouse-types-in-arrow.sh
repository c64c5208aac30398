#!/usr/bin/env bash
# ClickHouse: in Arrow, a DateTime is an integer, while a DateTime64 is a timestamp; an Enum is the number of its value.
#
# Guess: both times are Arrow timestamps with their time zone, an Enum is a dictionary or a text, and INT128 is a decimal or is refused.
# Seen with chdb 4.4.0 (ClickHouse 26.9): DateTime, the type of `now()`, is uint32, with neither unit nor zone. The Enum 'paid' is int8, with nothing that says what 2 means. INT128 is 16 bytes,
# the lowest first, so that comparing them orders 256 before 1. Casting in ClickHouse, to DateTime64 and String, keeps the meaning.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chdb==4.4.0 chdb-core==26.9.0 pyarrow==26.0.1 pandas==3.1.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime as dt

import chdb

table = chdb.query(
    """
    SELECT toDateTime('2024-01-15 12:00:00', 'Asia/Tokyo') AS t, toDateTime64('2024-01-15 12:00:00', 3, 'Asia/Tokyo') AS t64,
           CAST('paid', 'Enum8(''open'' = 1, ''paid'' = 2)') AS state, toInt128(x) AS large,
           CAST(t, 'DateTime64(0, ''Asia/Tokyo'')') AS t_cast, CAST(state, 'String') AS state_cast, CAST(large, 'String') AS large_cast
    FROM values('x Int64', 1, 256) ORDER BY large
    """,
    "ArrowTable",
)
types = {field.name: str(field.type) for field in table.schema}
print(types)
print(table.to_pylist()[0])
noon = dt.datetime(2024, 1, 15, 3, tzinfo=dt.timezone.utc)
assert types["t"] == "uint32" and table["t"][0].as_py() == noon.timestamp()
assert types["t64"] == "timestamp[ms, tz=Asia/Tokyo]" and table["t64"][0].as_py() == noon
assert types["state"] == "int8" and table["state"][0].as_py() == 2
assert types["large"] == "fixed_size_binary[16]" and table["large"][1].as_py() < table["large"][0].as_py()
assert table["t_cast"][0].as_py() == noon and table["state_cast"][0].as_py() == "paid"
assert [int(x) for x in table["large_cast"].to_pylist()] == [1, 256]
PYTHON
