"""A function with views, which servers of tests serve."""

from __future__ import annotations

from foldflight import ListView, MapView, udaf


class Seen:
    """Different texts, and how many of them there were at each row."""

    count: int
    seen: MapView[str, int]
    counts: ListView[int]

    def __init__(self) -> None:
        self.count, self.seen, self.counts = 0, MapView(), ListView()


@udaf(prefetch={"seen": ["value"]})
class CountDifferent:
    """Counts different texts."""

    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, acc: Seen, value: str) -> None:
        times = acc.seen.get(value, 0)
        acc.count += times == 0
        acc.seen[value] = times + 1
        acc.counts.add(acc.count)

    def get_value(self, acc: Seen) -> int:
        return acc.count + sum(acc.counts)
