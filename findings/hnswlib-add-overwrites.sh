#!/usr/bin/env bash
# hnswlib: `add_items` without labels replaces vectors that were added with labels of one's own.
#
# Guess: `add_items` without labels numbers the vectors on from those that are there, so it adds what is given, or is an error.
# Seen with hnswlib 0.8.0: the first label is the count of vectors, whatever labels these have. After two vectors of the labels 2 and 5, a
# third one without a label is 2, so it replaces the vector of label 2 without a word, and the count stays 2. Vectors that are marked as
# deleted stay in `get_current_count()` and in `get_ids_list()`, though `get_items` of their label is an error. With "cosine", `get_items`
# gives vectors of the length 1, not those that were added.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet hnswlib==0.8.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import hnswlib
import numpy as np


def index(space="l2"):
    made = hnswlib.Index(space=space, dim=2)
    made.init_index(max_elements=10)
    return made


labelled = index()
labelled.add_items([[0, 0], [1, 0]], [2, 5])
labelled.add_items([[9, 9]])
print("labels:", sorted(labelled.get_ids_list()), "vector 2:", labelled.get_items([2])[0])
assert sorted(labelled.get_ids_list()) == [2, 5] and labelled.get_current_count() == 2
assert labelled.get_items([2])[0].tolist() == [9, 9]

deleted = index()
deleted.add_items([[0, 0], [1, 0]])
deleted.mark_deleted(0)
print("with one of two deleted:", deleted.get_current_count(), sorted(deleted.get_ids_list()))
assert deleted.get_current_count() == 2 and sorted(deleted.get_ids_list()) == [0, 1]
try:
    deleted.get_items([0])
except RuntimeError as error:
    print("vector 0:", error)
else:
    raise AssertionError("no error")

cosine = index("cosine")
cosine.add_items([[3, 4]])
print("[3, 4] by cosine:", cosine.get_items([0])[0])
assert np.allclose(cosine.get_items([0])[0], [0.6, 0.8])
PYTHON
