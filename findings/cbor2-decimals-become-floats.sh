#!/usr/bin/env bash
# cbor2: Decimal("NaN") and Decimal("Infinity") come back as floats, which cannot be added to decimals, and Decimal("-0.00") loses its sign.
#
# Guess: a Decimal comes back as the Decimal that it was, as 1.10 does with its trailing zero.
# Seen with cbor2 6.3.0: what a decimal fraction of CBOR cannot hold is written as a float, so a state of decimals with one NaN raises a
# TypeError at the next addition, in the process that loads it. With `canonical`, keys are in the order of RFC 7049, shorter ones first, not
# of RFC 8949, which other libraries call deterministic: "a" is before 256 here, and after it there.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet cbor2==6.3.0
"$folder/venv/bin/python" - <<'PYTHON'
from decimal import Decimal

import cbor2

for text in ("1.10", "NaN", "Infinity", "-0.00"):
    back = cbor2.loads(cbor2.dumps(Decimal(text)))
    print(text, "is", repr(back))
    assert type(back) is (Decimal if text in ("1.10", "-0.00") else float)
    assert text != "-0.00" or str(back) == "0.00"
try:
    Decimal(1) + cbor2.loads(cbor2.dumps(Decimal("NaN")))
except TypeError as error:
    print(error)
else:
    raise AssertionError("a float could be added")
keys = list(cbor2.loads(cbor2.dumps({256: 1, "a": 2, 10: 3}, canonical=True)))
print("keys", keys, "by RFC 8949", sorted(keys, key=cbor2.dumps))
assert keys == [10, "a", 256] and sorted(keys, key=cbor2.dumps) == [10, 256, "a"]
PYTHON
