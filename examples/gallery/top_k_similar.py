"""The k rows whose vectors are most similar to a query's: a search by meaning, for each group.

Arguments: `item` STRING, `v` and `query` VECTOR(384); change ITEMS for embeddings of another length. Rows with NULL,
and rows whose score is NaN (cosine of a zero vector, infinities), are ignored. Direct arguments: `k`, at least 1, and
`metric`: "cosine", "dot", or "l2", whose score is the distance with a minus. Result: ARRAY<STRUCT<item STRING, score
DOUBLE>>, the highest score first, equal scores by item. State: a list of at most k pairs. Merges; keeps no other rows,
so it does not retract.

Scores are NumPy's, of 64 bits: sums of 384 products, wrong by about 384 * 2**-53 of the largest one.

Source: a heap of the k best, as in `heapq.nlargest` of Python.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> similar = connect(TopKSimilar)["top_k_similar"]
>>> def row(item, x, y):
...     return {"item": item, "v": [x, y] + [0.0] * 382, "query": [2.0] + [0.0] * 383}
>>> (epoch,) = run_epochs(
...     {"best": similar("item", "v", "query", k=2)},
...     epochs=[[row("up", 0.0, 1.0), row("near", 4.0, 3.0), row("same", 0.5, 0.0)]],
... )
>>> [(best["item"], round(best["score"], 9)) for best in epoch.changelog[-1][1]["best"]]
[('same', 1.0), ('near', 0.8)]
"""

import heapq
import math

import numpy as np
import pyarrow as pa

from foldflight import Vector, udaf

ITEMS = 384
BEST = pa.list_(pa.struct([("item", pa.string()), ("score", pa.float64())]))
METRICS = ("cosine", "dot", "l2")


def similarity(metric: str, v: np.ndarray, query: np.ndarray) -> float:
    """Return the score of a vector."""
    one, other = np.asarray(v, np.float64), np.asarray(query, np.float64)
    if metric == "l2":
        return -float(np.linalg.norm(one - other))
    dot = float(np.dot(one, other))
    if metric == "dot":
        return dot
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return dot / lengths if lengths else math.nan


@udaf(result_type=BEST, skip_nulls=True)
class TopKSimilar:
    """Find the k rows whose vectors are most similar to the query's."""

    def __init__(self, k: int = 10, metric: str = "cosine") -> None:
        if k < 1 or metric not in METRICS:
            raise ValueError(f"k is at least 1 and metric one of {', '.join(METRICS)}, not {k} and {metric!r}")
        self.k, self.metric = k, metric

    def create_accumulator(self) -> list[tuple[float, str]]:
        return []

    def accumulate(self, best, item: str, v: Vector[ITEMS], query: Vector[ITEMS]) -> None:
        score = similarity(self.metric, v, query)
        if not math.isnan(score):
            self.keep(best, [(score, item)])

    def merge(self, best, other) -> None:
        self.keep(best, other)

    def get_value(self, best):
        return [{"item": item, "score": score} for score, item in best]

    def keep(self, best, more) -> None:
        # With one new pair this is a step of a sorted heap, and equal scores stay in the order of their items.
        worst = best[-1] if len(best) == self.k else None
        more = [pair for pair in more if worst is None or (-pair[0], pair[1]) < (-worst[0], worst[1])]
        if more:
            best[:] = heapq.nsmallest(self.k, [*best, *more], key=lambda pair: (-pair[0], pair[1]))
