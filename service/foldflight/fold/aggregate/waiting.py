"""Values of groups that an async `get_value` or `get_values` computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foldflight.errors import RejectedError
from foldflight.fold.coroutines import Calls, Coroutines, SharedInstance, call_ids, failure_of, no_coroutines
from foldflight.fold.failures import Failures, user_failure
from foldflight.functions.author.context import OPEN_FOLD, FunctionContext, OpenFold
from foldflight.functions.author.spec import BoundFunction, Methods

if TYPE_CHECKING:
    from foldflight.fold.request import Resources


@dataclass(frozen=True)
class Waits:
    """The shared instance of an async aggregate function, and what runs its coroutines, in one exchange.

    Args:
        bound: The function.
        context: Its context in this exchange, whose log its methods use.
        resources: What the process gives to the exchange.
        coroutines: Runs its coroutines.
        shared: The instance of its class, which all exchanges of the process use.
    """

    bound: BoundFunction
    context: FunctionContext
    resources: Resources
    coroutines: Coroutines
    shared: SharedInstance[Methods]

    @classmethod
    def of(cls, bound: BoundFunction, context: FunctionContext, resources: Resources | None) -> Waits:
        """Open the instance for an exchange, or share the one that the process has.

        Raises:
            RejectedError: SIGNATURE, if nothing runs coroutines here.
            FunctionError: USER_CODE, if the class cannot be instantiated or its `open` raises.
        """
        if resources is None or resources.coroutines is None:
            raise no_coroutines(bound.function.name)
        shared = resources.coroutines.instance(bound, context.job_parameters, context, resources.check)
        return cls(bound, context, resources, resources.coroutines, shared)

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Send the lines that methods of the instance log to this exchange while the block runs."""
        token = OPEN_FOLD.set(OpenFold(self.resources.log, self.context.slot_at_work))
        try:
            yield
        finally:
            OPEN_FOLD.reset(token)

    def answers(
        self,
        accumulators: Sequence[Any],
        states: Sequence[Any],
        slots: Sequence[int],
        failures: Failures,
        again: Callable[[int], Any],
    ) -> list[Any]:
        """Return the values of n accumulators; None for accumulators that fail, if errors are isolated.

        Args:
            accumulators: The accumulators.
            states: What their states have, which the ids of their calls depend on.
            slots: Their slots.
            failures: Records the slots that fail.
            again: Makes the accumulator of a slot for another call.

        Raises:
            FunctionError: USER_CODE with the slot, if errors are not isolated.
        """
        function = self.bound.function
        assert function.bounds is not None
        method_name = function.value_method
        call: Any = getattr(self.shared.methods, method_name)
        calls = Calls(
            function,
            function.bounds,
            call,
            [(each,) for each in accumulators],
            call_ids(self.resources.call_scope, self.bound.fingerprint, states),
            self.bound.result_type,
            again=lambda index: (again(slots[index]),),
            shared=self.shared,
            stops=not failures.isolates,
            log=self.resources.log,
            slots=slots,
        )
        try:
            self.coroutines.answer(calls, self.resources.check)
        except SystemExit as error:  # the server interrupts what takes too long
            failure = user_failure(function.name, method_name, error)
            failure.slot = slots[calls.first_unanswered]
            raise failure from error
        values = []
        for index, answer in enumerate(calls.answers):
            values.append(None if answer is None else answer.value)
            if answer is not None and answer.error is not None:
                failure = failure_of(function.name, method_name, answer)
                failure.slot = slots[index]
                if not failures.take(failure):
                    raise failure from answer.error
        return values


def no_running_values(function: str) -> RejectedError:
    """Return the error for values after each row, of a function whose values are async."""
    return RejectedError(
        "SIGNATURE",
        f"{function} has an async get_value or get_values, which is asked once for each group that changed, and OVER "
        "needs the value after each row; aggregate with group_by, or make get_value a plain method",
        function=function,
    )
