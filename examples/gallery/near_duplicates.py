"""Groups of items whose vectors nearly agree: texts that were copied with small changes, found by random projections.

Arguments: `item` STRING and `v` VECTOR(384); change ITEMS for embeddings of another length. Rows with NULL, and vectors
that are zero or not finite, are ignored. Of an item with several vectors the first in the order of their bytes counts.
Direct argument: `threshold`, the least cosine of two duplicates. Result: ARRAY<ARRAY<STRING>>: each item that has
duplicates with all that it is linked to, sorted; the lists by their first item. State: a map of items to vectors, so it
has all of them. Merges; does not retract.

Only pairs whose projections agree in all bits of one of 16 bands are compared, so that n items need far fewer than
n**2 comparisons. All linked pairs have the cosine; one is missed with the probability (1 - (1 - a / pi)**8)**16 for its
angle a: one in 10**15 for the cosine 0.999, one in 7,000 for 0.95, one in 16 for 0.8.

Source: M. S. Charikar, "Similarity estimation techniques from rounding algorithms" (2002); the bands as in J. Leskovec,
A. Rajaraman and J. D. Ullman, "Mining of massive datasets", chapter 3.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> duplicates = connect(NearDuplicates)["near_duplicates"]
>>> def row(item, x, y):
...     return {"item": item, "v": [x, y] + [0.0] * 382}
>>> (epoch,) = run_epochs(
...     {"found": duplicates("item", "v", threshold=0.99)},
...     epochs=[[row("a", 1.0, 0.0), row("b", 0.0, 1.0), row("c", 2.0, 0.0), row("d", 0.0, -1.0)]],
... )
>>> epoch.changelog[-1][1]["found"]
[['a', 'c']]
"""

import itertools
from collections import defaultdict

import numpy as np

from foldflight import Vector, udaf

ITEMS, BANDS, BITS = 384, 16, 8
# The numbers of RandomState are the same in each version of NumPy, so all servers have the same projections.
PLANES = np.random.RandomState(2002).standard_normal((ITEMS, BANDS * BITS))


@udaf(result_type="ARRAY<ARRAY<STRING>>", skip_nulls=True)
class NearDuplicates:
    """Find the groups of items whose vectors nearly agree."""

    def __init__(self, threshold: float = 0.95) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold is a cosine above 0 and at most 1, not {threshold}")
        self.threshold = threshold

    def create_accumulator(self) -> dict[str, Vector[ITEMS]]:
        return {}

    def accumulate(self, known, item: str, v: Vector[ITEMS]) -> None:
        copied = np.array(v)  # the rows of a chunk are one array, which a view of it would keep
        if np.isfinite(copied).all() and copied.any():
            self.put(known, item, copied)

    def merge(self, known, other) -> None:
        for item, v in other.items():
            self.put(known, item, v)

    def put(self, known, item: str, v: np.ndarray) -> None:
        if item not in known or v.tobytes() < known[item].tobytes():
            known[item] = v

    def get_value(self, known):
        items = sorted(known)
        if not items:
            return []
        vectors = np.array([known[item] for item in items], np.float64)
        # The largest item of each is 1, so that no square is too large or too small for a float.
        vectors /= np.abs(vectors).max(axis=1, keepdims=True)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        linked = list(range(len(items)))  # by item: one that it is linked to, or itself

        def root(at: int) -> int:
            while linked[at] != at:
                linked[at] = at = linked[linked[at]]
            return at

        bits = (vectors @ PLANES > 0).reshape(len(items), BANDS, BITS)
        for band in np.packbits(bits, axis=2)[:, :, 0].T.tolist():
            alike = defaultdict(list)
            for at, code in enumerate(band):
                alike[code].append(at)
            for one, other in itertools.chain.from_iterable(itertools.combinations(each, 2) for each in alike.values()):
                if root(one) != root(other) and float(np.dot(vectors[one], vectors[other])) >= self.threshold - 1e-12:
                    linked[max(root(one), root(other))] = min(root(one), root(other))
        groups = defaultdict(list)
        for at, item in enumerate(items):
            groups[root(at)].append(item)
        return [group for group in groups.values() if len(group) > 1]
