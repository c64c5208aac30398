"""Scalar functions that wait for something outside: the rows of a chunk run side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from foldflight.errors import FunctionError
from foldflight.fold.coroutines import Answer, Calls, Check, Coroutines, call_ids, failure_of, no_coroutines
from foldflight.fold.failures import Failures
from foldflight.fold.mode import Mode
from foldflight.fold.request import Request, Resources
from foldflight.fold.rows import Rows
from foldflight.fold.scalar.evaluation import Instance, Scalar, cast
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.scalar import BoundScalar


@dataclass(frozen=True)
class _Environment:
    """What the calls of an exchange share: who runs coroutines, when waiting ends, and the scope of call ids."""

    coroutines: Coroutines
    check: Check
    scope: str


class AsyncScalar(Instance, Scalar):
    """Runs the author's coroutine for each row, or for batches of rows.

    Args:
        bound: The function.
        context: The context of the function in this exchange, whose log and metrics its calls use.
        failures: Records errors of single rows.
        request: The request of the exchange.
        resources: What the process gives it.

    Raises:
        RejectedError: SIGNATURE, if nothing runs coroutines here.
        FunctionError: USER_CODE, if the class cannot be instantiated or its `open` raises.
    """

    def __init__(
        self, bound: BoundScalar, context: FunctionContext, failures: Failures, request: Request, resources: Resources
    ) -> None:
        self.bound, self.name, self.failures = bound, bound.function.name, failures
        if resources.coroutines is None:
            raise no_coroutines(self.name)
        self._here = _Environment(resources.coroutines, resources.check, resources.call_scope)
        self._log = resources.log
        self._shared = resources.coroutines.instance(bound, request.job_parameters, context, resources.check)
        self.methods = self._shared.methods

    def close(self) -> None:
        self._shared.close()

    @property
    def mode(self) -> Mode:
        return Mode.ASYNC

    def values(self, rows: Rows) -> pa.Array:
        return self.values_of_called_rows(rows, self._values)

    def _values(self, rows: Rows) -> pa.Array:
        columns = [column.values for column in rows.arguments]
        arguments = list(zip(*columns, strict=True)) if columns else [()] * len(rows)
        bounds = self.bound.function.bounds
        assert bounds is not None
        calls = Calls(
            self.bound.function,
            bounds,
            self.methods.eval,
            arguments,
            call_ids(self._here.scope, self.bound.fingerprint, arguments),
            self.bound.result_type,
            again=lambda index: tuple(column.part(index, index + 1).values[0] for column in rows.arguments),
            shared=self._shared,
            stops=not self.failures.isolates,
            log=self._log,
        )
        try:
            self._here.coroutines.answer(calls, self._here.check)
        except SystemExit as error:  # the server interrupts what takes too long
            self.fail_row(rows, calls.first_unanswered, error)
        results: list[Any] = []
        for index, answer in enumerate(calls.answers):
            if answer is not None and answer.error is not None:
                self._fail(rows, index, answer)
            results.append(None if answer is None else answer.value)
        return cast(self, rows, results, self.bound.result_type)

    def _fail(self, rows: Rows, index: int, answer: Answer) -> None:
        assert answer.error is not None
        failure = failure_of(self.name, self.method_name, answer)
        try:
            self.take(rows, index, failure)
        except FunctionError as raised:
            raise raised from answer.error
