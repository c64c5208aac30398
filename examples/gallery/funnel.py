"""How many steps of a funnel were reached, in their order and within a time after the first step.

Arguments: `event` STRING and `at` TIMESTAMPTZ (Spark's TIMESTAMP), the event time; rows with NULL and events that are
not steps are ignored. Group by user or session. Direct arguments: `steps`, the names of the steps, separated by commas,
and `within_s`, the seconds from the first step to the last. Result: INT, from 0 to the number of steps. A step is
reached if it comes later than the step before it; other events may come between them. State: an array of the times of
all steps, so rows may come in any order and late. Merges and retracts exactly. The result is exact.

Source: the dynamic programme of ClickHouse's `windowFunnel`; for each step it keeps the latest start of a chain of
steps that reaches it, because a later start leaves the most time.

>>> import datetime
>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> funnel = connect(Funnel)["funnel"]
>>> def row(user, event, minute):
...     return {"user": user, "event": event, "at": datetime.datetime(2030, 1, 1, 12, minute, tzinfo=datetime.UTC)}
>>> first, second = run_epochs(
...     {"reached": funnel("event", "at", steps="view,cart,buy", within_s=1800)},
...     keys=["user"],
...     epochs=[[row("ann", "view", 0), row("ann", "buy", 20), row("bob", "view", 1)], [row("ann", "cart", 10)]],
... )
>>> first.changelog
[('+I', {'user': 'ann', 'reached': 1}), ('+I', {'user': 'bob', 'reached': 1})]
>>> second.changelog
[('-U', {'user': 'ann', 'reached': 1}), ('+U', {'user': 'ann', 'reached': 3})]
"""

import datetime
from typing import Annotated, NamedTuple

from foldflight import udaf


class Reached(NamedTuple):
    at: Annotated[datetime.datetime, "TIMESTAMPTZ"]
    step: int


@udaf(input_types=["STRING", "TIMESTAMPTZ"], result_type="INT", skip_nulls=True)
class Funnel:
    """Count the steps that were reached in their order."""

    def __init__(self, steps: str, within_s: float):
        names = [name.strip() for name in steps.split(",")]
        if "" in names or len(set(names)) < len(names):
            raise ValueError(f"steps is {steps!r}; give different names, separated by commas")
        self.steps = {name: place for place, name in enumerate(names)}
        self.within = datetime.timedelta(seconds=within_s)

    def create_accumulator(self) -> list[Reached]:
        return []

    def accumulate(self, accumulator, event, at):
        if event in self.steps:
            accumulator.append(Reached(at, self.steps[event]))

    def retract(self, accumulator, event, at):
        if event in self.steps:
            accumulator.remove(Reached(at, self.steps[event]))

    def merge(self, accumulator, other):
        accumulator.extend(other)

    def get_value(self, accumulator):
        starts = [None] * len(self.steps)  # of the latest chain that reaches each step
        # At one time the last steps come first: a step has to come later than the one before it.
        for at, step in sorted(accumulator, key=lambda reached: (reached.at, -reached.step)):
            if step == 0:
                starts[0] = at
            elif starts[step - 1] is not None and at - starts[step - 1] <= self.within:
                starts[step] = starts[step - 1]
        return sum(start is not None for start in starts)
