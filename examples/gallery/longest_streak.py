"""The longest series of consecutive days with at least one row.

Argument: `day` DATE; NULL is ignored. Result: INT; 0 if there is no day. State: the number of rows of each day, as a
map. Merges and retracts exactly. The result is exact.

Source: a streak begins at each day whose day before is absent, so that each day is visited once (folklore; the
"longest consecutive sequence" of textbooks).

>>> import datetime
>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> longest_streak = connect(LongestStreak)["longest_streak"]
>>> def row(day):
...     return {"user": "ann", "day": datetime.date(2030, 1, day)}
>>> first, second, third = run_epochs(
...     {"days": longest_streak("day")},
...     keys=["user"],
...     epochs=[[row(1), row(3), row(3), row(4)], [row(2)], [("-D", row(3))]],
... )
>>> first.changelog, second.changelog[-1], third.changelog
([('+I', {'user': 'ann', 'days': 2})], ('+U', {'user': 'ann', 'days': 4}), [])
"""

import datetime

from foldflight import udaf

DAY = datetime.timedelta(days=1)


@udaf(input_types=["DATE"], result_type="INT", skip_nulls=True)
class LongestStreak:
    """Find the length of the longest series of consecutive days."""

    def create_accumulator(self) -> dict[datetime.date, int]:
        return {}

    def accumulate(self, accumulator, day):
        accumulator[day] = accumulator.get(day, 0) + 1

    def retract(self, accumulator, day):
        accumulator[day] -= 1
        if not accumulator[day]:
            del accumulator[day]

    def merge(self, accumulator, other):
        for day, rows in other.items():
            accumulator[day] = accumulator.get(day, 0) + rows

    def get_value(self, accumulator):
        longest = length = 0
        before = None
        for day in sorted(accumulator):
            length = length + 1 if before is not None and day - before == DAY else 1
            longest = max(longest, length)
            before = day
        return longest
