"""Values of groups that an async `get_value` computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foldflight.errors import RejectedError
from foldflight.fold.coroutines import Calls, Coroutines, call_ids, failure_of, go_on, no_coroutines
from foldflight.fold.failures import Failures, user_failure
from foldflight.functions.author.spec import BoundFunction

if TYPE_CHECKING:
    from foldflight.fold.request import Resources


@dataclass(frozen=True)
class Waits:
    """What an aggregate function waits with.

    Args:
        bound: The function.
        coroutines: Runs its coroutines.
        resources: What the process gives to the exchange.
    """

    bound: BoundFunction
    coroutines: Coroutines
    resources: Resources

    @classmethod
    def of(cls, bound: BoundFunction, resources: Resources | None) -> Waits:
        """Return it for the calls of an exchange. Raises RejectedError SIGNATURE if nothing runs coroutines here."""
        if resources is None or resources.coroutines is None:
            raise no_coroutines(bound.function.name)
        return cls(bound, resources.coroutines, resources)

    def call_if_written(self, method_name: str, method: Callable[..., Any] | None, *arguments: object) -> None:
        """Call `open` or `close` of the author, if there is one, and wait for it if it is a coroutine.

        Raises:
            FunctionError: USER_CODE.
        """
        if method is None or not self.coroutines.opens:
            return
        name = self.bound.function.name
        try:
            returned = method(*arguments)
            if inspect.isawaitable(returned):
                # An engine that leaves ends `open`, and is the reason for `close`.
                check = self.resources.check if method_name == "open" else go_on
                self.coroutines.run(name, returned, check)
        except (Exception, SystemExit) as error:
            raise user_failure(name, method_name, error) from error

    def answers(
        self,
        call: Callable[..., Any],
        accumulators: Sequence[Any],
        states: Sequence[Any],
        slots: Sequence[int],
        failures: Failures,
    ) -> list[Any]:
        """Return the values of n accumulators; None for those that fail, if errors are isolated.

        Args:
            call: The author's coroutine function.
            accumulators: The accumulators.
            states: Their states, which the ids of their calls depend on.
            slots: Their slots.
            failures: Records the slots that fail.

        Raises:
            FunctionError: USER_CODE with the slot, if errors are not isolated.
        """
        function = self.bound.function
        assert function.bounds is not None
        calls = Calls(
            function,
            function.bounds,
            call,
            [(each,) for each in accumulators],
            call_ids(self.resources.call_scope, self.bound.fingerprint, states),
            self.bound.result_type,
            stops=not failures.isolates,
            log=self.resources.log,
            slots=slots,
        )
        try:
            self.coroutines.answer(calls, self.resources.check)
        except SystemExit as error:  # the server interrupts what takes too long
            failure = user_failure(function.name, "get_value", error)
            failure.slot = slots[calls.first_unanswered]
            raise failure from error
        values = []
        for index, answer in enumerate(calls.answers):
            values.append(None if answer is None else answer.value)
            if answer is not None and answer.error is not None:
                failure = failure_of(function.name, "get_value", answer)
                failure.slot = slots[index]
                if not failures.take(failure):
                    raise failure from answer.error
        return values


def no_running_values(function: str) -> RejectedError:
    """Return the error for values after each row, of a function whose `get_value` is async."""
    return RejectedError(
        "SIGNATURE",
        f"{function} has an async get_value, which is asked once for each group that changed, and OVER needs the value "
        "after each row; aggregate with group_by, or make get_value a plain method",
        function=function,
    )
