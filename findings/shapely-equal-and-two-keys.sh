#!/usr/bin/env bash
# Shapely: POINT (0 0) == POINT (-0 0), and they are two keys of a dict.
#
# Guess: values that are equal have equal hashes, as Python demands, so a group by geometries has one group for equal ones.
# Seen with shapely 2.1.2: the hash is that of the bytes, and `==` compares coordinates, of which 0.0 and -0.0 are equal. A negated or
# rounded coordinate makes such a point. A point of NaN equals itself, unlike a float. shapely.normalize does not help.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet shapely==2.1.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import math

import shapely
from shapely import Point

zero, minus = Point(0.0, 0.0), Point(-0.0, 0.0)
normalized = {shapely.normalize(zero), shapely.normalize(minus)}
print("equal:", zero == minus, "keys:", len({zero, minus}), "normalized:", len(normalized))
assert zero == minus and len({zero, minus}) == len(normalized) == 2
assert len({Point(1, 2), Point(1.0, 2.0)}) == 1
assert Point(math.nan, 0) == Point(math.nan, 0)
PYTHON
