#!/usr/bin/env bash
# usearch: in an index of int8, the floats [0.5, 0] and [0.25, 0] have the distance 0.
#
# Guess: dtype="i8" rounds coordinates between -1 and 1 to one of 255 steps, so it loses digits, and the Euclidean distance is about the
# right one.
# Seen with usearch 2.26.6: each vector of floats is divided by its length first, so all of one direction are equal: [3, 4] and [30, 40]
# have the distance 0 as well, by `l2sq` as by `cos`, and the neighbour is whichever comes first; inner products do not differ either. With
# f32 and f16 it is as guessed, and vectors given as int8 are kept.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet usearch==2.26.6 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from usearch.index import Index


def distances(vectors, kind, given=np.float32, metric="l2sq"):
    index = Index(ndim=2, metric=metric, dtype=kind)
    index.add(np.arange(2), np.array(vectors, given))
    return sorted(round(float(x), 2) for x in index.search(np.array(vectors[0], given), 2).distances)


for vectors, exact in (([[0.5, 0], [0.25, 0]], 0.06), ([[3, 4], [30, 40]], 2025)):
    print(vectors, "f32", distances(vectors, "f32"), "f16", distances(vectors, "f16"), "i8", distances(vectors, "i8"))
    assert distances(vectors, "f32") == distances(vectors, "f16") == [0, exact]
    assert distances(vectors, "i8") == [0, 0]
assert distances([[30, 0], [5, 0]], "i8", np.int8) == [0, 625]
PYTHON
