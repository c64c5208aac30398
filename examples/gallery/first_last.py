"""The value of the earliest and of the latest row, by event time or any other key.

- `first_by(value, at)` returns the value with the least `at`, and `last_by(value, at)` that with the greatest.

Unlike `first` and `last`, the result does not depend on the order in which rows arrive: of several values with the same
`at`, `first_by` takes the least and `last_by` the greatest.

Arguments: `value` and `at` of any types whose values can be compared, such as numbers, texts, dates and timestamps;
rows with NULL, or with NaN as `at`, are ignored. A `value` that is NaN is greater than all others, as in Spark. Result:
the type of `value`; NULL if there is no row. State: a struct of both. Merges. Does not retract: the runner-up is not
kept. The result is exact. Both are compiled if value and key are numbers, dates or timestamps without zone.

Source: the maximum of pairs (`argmax`; `max_by` in Presto and Spark), with a rule for ties that makes it commutative.

>>> import datetime
>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> functions = connect("embedded:examples.gallery.first_last")
>>> def row(minute, price):
...     return {"at": datetime.datetime(2030, 1, 1, 12, minute, tzinfo=datetime.UTC), "price": price}
>>> first, second = run_epochs(
...     {"opening": functions["first_by"]("price", "at"), "closing": functions["last_by"]("price", "at")},
...     epochs=[[row(5, 11), row(1, 10)], [row(3, 15), row(7, 12)]],
... )
>>> first.changelog[-1], second.changelog[-1]
(('+I', {'opening': 10, 'closing': 11}), ('+U', {'opening': 10, 'closing': 12}))
"""

from typing import Any

from foldflight import udaf


class Chosen:
    value: Any
    at: Any

    def __init__(self):
        self.value = None
        self.at = None


class _By:
    """What both have in common: they hold one row, and merge by taking the row of the other."""

    def create_accumulator(self) -> Chosen:
        return Chosen()

    def merge(self, accumulator, other):
        if other.at is not None:
            self.accumulate(accumulator, other.value, other.at)  # type: ignore[attr-defined]

    def get_value(self, accumulator):
        return accumulator.value


@udaf(input_types=["T", "U"], result_type="T", state_type="STRUCT<value T, at U>", skip_nulls=True)
class FirstBy(_By):
    """Take the value of the row with the least key; of several, the least value."""

    def accumulate(self, accumulator, value, at):
        if at != at:  # noqa: PLR0124 - only NaN differs from itself
            return
        earlier = accumulator.at is None or at < accumulator.at
        less = accumulator.value is None or value < accumulator.value or accumulator.value != accumulator.value
        if earlier or (at == accumulator.at and less):
            accumulator.value = value
            accumulator.at = at


@udaf(input_types=["T", "U"], result_type="T", state_type="STRUCT<value T, at U>", skip_nulls=True)
class LastBy(_By):
    """Take the value of the row with the greatest key; of several, the greatest value."""

    def accumulate(self, accumulator, value, at):
        if at != at:  # noqa: PLR0124 - only NaN differs from itself
            return
        later = accumulator.at is None or at > accumulator.at
        greater = accumulator.value is None or value > accumulator.value or value != value  # noqa: PLR0124
        if later or (at == accumulator.at and greater):
            accumulator.value = value
            accumulator.at = at
