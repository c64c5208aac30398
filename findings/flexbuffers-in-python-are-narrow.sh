#!/usr/bin/env bash
# FlexBuffers in Python: 1e300 is an OverflowError, and 2^63 is too large, though both fit in the format.
#
# Guess: a format with 64-bit unsigned integers and doubles takes them.
# Seen with flatbuffers 25.12.19: `Dumps` asks whether a float fits in 32 bits by packing it so, which raises from 3.4e38 on, while 1e-300
# and infinity are doubles and written. Integers are written with a sign, so the upper half of UINT64, hashes for example, is refused; the
# builder's `UInt` writes them.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet flatbuffers==25.12.19
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from flatbuffers import flexbuffers

seen = {}
for value in (0.1, 1e-300, float("inf"), 1e300, 2**63 - 1, 2**63):
    try:
        seen[value] = flexbuffers.Loads(flexbuffers.Dumps(value)) == value
    except (OverflowError, ValueError) as error:
        seen[value] = type(error).__name__
builder = flexbuffers.Builder()
builder.UInt(2**63)
unsigned = flexbuffers.Loads(builder.Finish())
print(seen, unsigned)
assert list(seen.values()) == [True, True, True, "OverflowError", True, "ValueError"]
assert unsigned == 2**63
PYTHON
