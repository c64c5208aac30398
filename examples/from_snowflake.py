"""A handler written for Snowflake, unchanged under @udaf."""

from foldflight import udaf


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class PriceSpread:
    """The difference of the highest and the lowest price."""

    def __init__(self):
        self._low = self._high = None

    @property
    def aggregate_state(self):
        return self._low, self._high

    def accumulate(self, price):
        self.merge((price, price))

    def merge(self, other_state):
        low, high = other_state
        if low is not None:
            self._low = low if self._low is None else min(self._low, low)
            self._high = high if self._high is None else max(self._high, high)

    def finish(self):
        return None if self._low is None else self._high - self._low
