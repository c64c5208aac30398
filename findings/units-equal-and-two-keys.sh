#!/usr/bin/env bash
# pint, uncertainties: 3 ft == 1 yd, and x == x + 0, and they are two keys of a dict.
#
# Guess: values that are equal have equal hashes, as Python demands, so a group by quantities has one group for equal ones.
# Seen with pint 0.25 and uncertainties 3.2.3: a quantity's hash is that of its value in base units, which rounds: 3 ft and 1 yd differ in
# it, 1000 mm and 1 m do not. A number with an uncertainty has another hash after + 0, though its difference to the former is exactly 0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pint==0.25 uncertainties==3.2.3
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import pint
from uncertainties import ufloat

quantity = pint.UnitRegistry().Quantity
feet, yard, inch, centimetres = quantity(3, "ft"), quantity(1, "yd"), quantity(1, "inch"), quantity(2.54, "cm")
print("3 ft == 1 yd:", feet == yard, "keys:", len({feet, yard}), "1 inch == 2.54 cm:", inch == centimetres)
assert feet == yard and len({feet, yard}) == 2
assert inch == centimetres and hash(inch) != hash(centimetres)
assert len({quantity(1000, "mm"), quantity(1, "m")}) == 1

x = ufloat(1, 0.1)
print("x == x + 0:", x == x + 0, "keys:", len({x, x + 0}), "x - (x + 0):", x - (x + 0))
assert x == x + 0 and len({x, x + 0}) == 2 and len({x, x}) == 1
assert ((x - (x + 0)).n, (x - (x + 0)).s) == (0, 0)
PYTHON
