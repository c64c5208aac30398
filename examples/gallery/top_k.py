"""The most frequent texts with estimated counts, in bounded memory, by the space-saving algorithm.

Arguments: `item` STRING; NULL is ignored. Direct arguments: `k`, the number of items in the result, and `counters`, the
number of items that are counted at a time. Result: ARRAY<STRUCT<item STRING, count BIGINT, error BIGINT>>, by count
descending. State: at most `counters` items with count and error. Merges. Does not retract; an item that was replaced
is not known any more.

Error bound: with n rows, the true count of each item in the result is at least `count - error` and at most `count`, and
`error` is at most n / `counters`. Each item with more than n / `counters` rows is counted. Counts are exact for groups
of at most `counters` distinct items.

Sources: A. Metwally, D. Agrawal and A. El Abbadi, "Efficient computation of frequent and top-k elements in data
streams" (2005); merging: P. K. Agarwal et al., "Mergeable summaries" (2012), and M. Cafaro et al., "A parallel space
saving algorithm for frequent items and the Hurwitz zeta distribution" (2016).

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> top_k = connect(TopK)["top_k"]
>>> first, second = run_epochs(
...     {"pages": top_k("page", k=1)},
...     epochs=[[{"page": "home"}, {"page": "cart"}, {"page": "home"}], [{"page": "cart"}, {"page": "cart"}]],
... )
>>> first.changelog[-1]
('+I', {'pages': [{'item': 'home', 'count': 2, 'error': 0}]})
>>> second.changelog[-1]
('+U', {'pages': [{'item': 'cart', 'count': 3, 'error': 0}]})
"""

from foldflight import udaf


class Counters:
    counts: dict[str, int]
    errors: dict[str, int]
    # The smallest count when it was last searched, and the items that had it, the next one to replace last.
    least: int
    smallest: list[str]

    def __init__(self):
        self.counts, self.errors, self.least, self.smallest = {}, {}, 0, []


@udaf(input_types=["STRING"], result_type="ARRAY<STRUCT<item STRING, count BIGINT, error BIGINT>>", skip_nulls=True)
class TopK:
    """Find the `k` most frequent texts."""

    def __init__(self, k: int = 10, counters: int = 1000):
        if not 1 <= k <= counters:
            raise ValueError(f"k is {k}, and counters is {counters}; give a k from 1 to counters")
        self.k = k
        self.counters = counters

    def create_accumulator(self) -> Counters:
        return Counters()

    def accumulate(self, accumulator, item):
        counts = accumulator.counts
        if item in counts:
            counts[item] += 1
        elif len(counts) < self.counters:
            counts[item] = 1
            accumulator.errors[item] = 0
        else:
            replaced = self.take_smallest(accumulator)
            accumulator.errors.pop(replaced)
            accumulator.errors[item] = counts.pop(replaced)
            counts[item] = accumulator.errors[item] + 1

    def take_smallest(self, accumulator):
        """Return the item with the smallest count, the first in the order of texts if there are several.

        All items in `smallest` had the count `least` when they were found. Counts only grow and new ones are greater,
        so an item there whose count is still `least` is still one of the smallest.
        """
        counts = accumulator.counts
        while accumulator.smallest:
            item = accumulator.smallest.pop()
            if counts[item] == accumulator.least:
                return item
        accumulator.least = min(counts.values())
        found = (item for item, count in counts.items() if count == accumulator.least)
        accumulator.smallest = sorted(found, reverse=True)
        return accumulator.smallest.pop()

    def merge(self, accumulator, other):
        one, two = self.missing(accumulator), self.missing(other)
        items = accumulator.counts.keys() | other.counts.keys()
        counts = {item: accumulator.counts.get(item, one) + other.counts.get(item, two) for item in items}
        errors = {item: accumulator.errors.get(item, one) + other.errors.get(item, two) for item in items}
        kept = self.ordered(counts)[: self.counters]
        accumulator.counts = {item: counts[item] for item in kept}
        accumulator.errors = {item: errors[item] for item in kept}
        accumulator.smallest = []

    def missing(self, accumulator):
        """Return the greatest number of rows that an item without a counter may have."""
        return min(accumulator.counts.values()) if len(accumulator.counts) >= self.counters else 0

    def ordered(self, counts):
        return sorted(counts, key=lambda item: (-counts[item], item))

    def get_value(self, accumulator):
        items = self.ordered(accumulator.counts)[: self.k]
        return [{"item": item, "count": accumulator.counts[item], "error": accumulator.errors[item]} for item in items]
