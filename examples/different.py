"""Counts the different texts of a group, however many: a stream reads and writes only those that rows have."""

from foldflight import MapView, udaf


class Seen:
    """How often each text was seen, and how many there are."""

    count: int
    times: MapView[str, int]

    def __init__(self):
        self.count = 0
        self.times = MapView()


@udaf(result_type="BIGINT", skip_nulls=True, prefetch={"times": ["text"]})
class CountDifferent:
    """Count different texts."""

    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, acc, text: str):
        times = acc.times.get(text, 0)
        acc.count += times == 0
        acc.times[text] = times + 1

    def retract(self, acc, text: str):
        times = acc.times[text]
        if times == 1:
            del acc.times[text]
            acc.count -= 1
        else:
            acc.times[text] = times - 1

    def merge(self, acc, other):
        for text, times in other.times.items():
            acc.count += text not in acc.times
            acc.times[text] = acc.times.get(text, 0) + times

    def get_value(self, acc) -> int:
        return acc.count
