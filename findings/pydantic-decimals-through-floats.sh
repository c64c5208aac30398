#!/usr/bin/env bash
# pydantic: the JSON number 0.1234567890123456789 is read as the Decimal 0.12345678901234568, and 1.10 as 1.1.
#
# Guess: a field of the type Decimal is read from the digits of the JSON, as that is what the type is for; `json.loads` can do so with
# `parse_float`.
# Seen with pydantic 2.14.4: `validate_json` reads a float first, so digits beyond the 17th and trailing zeros are lost, and amounts of 18
# digits are rounded. As a text in JSON the same number is exact, and so is an integer. 1e400 is infinite as a float, without a word.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pydantic==2.14.4
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from decimal import Decimal

from pydantic import TypeAdapter

adapter = TypeAdapter(Decimal)
for digits, expected in (
    ("0.1234567890123456789", "0.12345678901234568"),
    ("1.10", "1.1"),
    ("9007199254740993.25", "9007199254740994"),
    ("9007199254740993", "9007199254740993"),
):
    number, text = adapter.validate_json(digits), adapter.validate_json(f'"{digits}"')
    print(f"{digits}: as a number {number}, as a text {text}")
    assert text.as_tuple() == Decimal(digits).as_tuple()
    assert str(number) == expected, number
assert TypeAdapter(float).validate_json("1e400") == float("inf")
PYTHON
