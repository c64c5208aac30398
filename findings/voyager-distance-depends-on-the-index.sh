#!/usr/bin/env bash
# Voyager: the distance of [1, 0] and [1, 0] by inner product is 0, and -2401 once [30, 40] is in the index.
#
# Guess: `get_distance` is a function of the two vectors and the space: 1 less the inner product, whatever the index holds.
# Seen with voyager 2.2.3: both vectors get a further coordinate first, the greatest length in the index less their own, 49 here, whose
# square is in the distance; `query` gives the right ones. In an index of E4M3 by cosine, [3, 4] has the distance -0.05 to itself. A
# vector that is marked as deleted is still counted by `len`, and is found by `in` and among `ids`.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet voyager==2.2.3 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from voyager import Index, Space, StorageDataType

index = Index(Space.InnerProduct, num_dimensions=2)
distances = [index.get_distance([1, 0], [1, 0])]
for vector in ([3, 4], [30, 40]):
    index.add_item(vector)
    distances.append(index.get_distance([1, 0], [1, 0]))
print("distances of [1, 0] and [1, 0], with 0, 1 and 2 vectors in the index:", distances)
assert distances == [0, -16, -2401]
labels, found = index.query([1, 0], k=2)
print("distances of [1, 0] by query:", dict(zip(labels.tolist(), found.tolist())))
assert dict(zip(labels.tolist(), found.tolist())) == {0: -2, 1: -29}

small = Index(Space.Cosine, num_dimensions=2, storage_data_type=StorageDataType.E4M3)
small.add_item([3, 4])
_, found = small.query([3, 4], k=1)
print("distance of [3, 4] to itself by cosine, E4M3:", round(float(found[0]), 2))
assert round(float(found[0]), 2) == -0.05

deleted = Index(Space.Euclidean, num_dimensions=2)
for first in (0, 1, 2):
    deleted.add_item([first, 0])
deleted.mark_deleted(0)
print("of three, one deleted:", len(deleted), 0 in deleted, sorted(deleted.ids))
assert len(deleted) == 3 and 0 in deleted and 0 in deleted.ids
PYTHON
