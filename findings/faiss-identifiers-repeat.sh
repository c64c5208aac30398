#!/usr/bin/env bash
# Faiss: a vector that is added to an IVF index after a removal gets the identifier of another one.
#
# Guess: vectors that are added without identifiers are numbered, and no number is given twice while its vector is in the index.
# Seen with faiss-cpu 1.15.1: the next number is the count of vectors. An IVF index keeps the numbers of those that stay, so after one of
# three is removed, the next vector is the second one of number 2: a search finds 2 twice, and `remove_ids` of 2 removes both. A flat index
# renumbers what stays instead, so 2 is another vector than before. The merge of two IVF indexes that were filled apart repeats numbers,
# too, as `add_id` is 0 by default.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet faiss-cpu==1.15.1 numpy==2.4.6
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { tail -20 "$folder/log"; exit 1; }
import faiss
import numpy as np


def vectors(*firsts):
    return np.array([[first, 0] for first in firsts], np.float32)


def index(kind, *firsts):
    made = faiss.index_factory(2, kind)
    made.train(vectors(0, 1, 2))
    made.add(vectors(*firsts))
    return made


def neighbours(searched, first, count):
    distances, numbers = searched.search(vectors(first), count)
    return list(zip(numbers[0].tolist(), distances[0].tolist()))


ivf = index("IVF1,Flat", 0, 1, 2)
assert ivf.remove_ids(np.array([0])) == 1
ivf.add(vectors(5))
found = neighbours(ivf, 1, 3)
print("IVF, 0 removed, 5 added:", found)
assert found == [(1, 0.0), (2, 1.0), (2, 16.0)]
assert ivf.remove_ids(np.array([2])) == 2

flat = index("Flat", 0, 1, 2)
flat.remove_ids(np.array([0]))
flat.add(vectors(5))
found = neighbours(flat, 1, 3)
print("flat, 0 removed, 5 added:", found)
assert found == [(0, 0.0), (1, 1.0), (2, 16.0)]
PYTHON
