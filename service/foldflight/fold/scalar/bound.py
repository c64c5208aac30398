"""Bound requests of steps: each step with its function and types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.fold.accelerator import Accelerator
from foldflight.fold.aggregate.calls import check_fingerprint, column_of, demand_instance
from foldflight.fold.failures import ERROR, ERROR_TYPE
from foldflight.fold.request import Request, Resources
from foldflight.fold.scalar.expressions import OpenExpressions
from foldflight.functions.author.scalar import BoundScalar, ScalarFunction
from foldflight.functions.query.step import Step, StepArgument
from foldflight.functions.registry import Registry, unknown_function
from foldflight.functions.types.sql import is_larger_than

ROW: Final = "row"
"""The column of answers with the number of the row of the chunk. Answers have it if a step is a table function."""

# Arrow reads types that are nested up to 64 times.
_TYPE_DEPTH_MAX: Final = 48
_TYPE_PARTS_MAX: Final = 4096


@dataclass(frozen=True)
class BoundStep:
    """One step with its function and types.

    Args:
        step: The step.
        bound: Its function, bound to the types of its arguments.
    """

    step: Step
    bound: BoundScalar

    can_retract = can_merge = can_migrate = is_invertible = value_varies = False
    views = ()

    @property
    def rows_at_once(self) -> int:
        """The rows that a process evaluates at once, if its function is async; otherwise 0."""
        bounds = self.bound.function.bounds
        return 0 if bounds is None else bounds.rows_at_once

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its function, as 16 hexadecimal digits."""
        return self.bound.fingerprint

    @property
    def input_types(self) -> tuple[pa.DataType, ...]:
        """The types to which its arguments are cast."""
        return self.bound.input_types


class BoundExpressions:
    """The steps of an exchange, bound to functions and columns.

    Args:
        request: The steps and the numbers of those whose results are outputs.
        registry: The functions.
        where: The location of the functions, for messages.

    Attributes:
        calls: The bound steps.
        schema: The schema of answers: `row` if there is a table function, then `output_i` for each output, and `error`
            if errors are isolated.

    Raises:
        RejectedError: UNKNOWN_FUNCTION; SCHEMA_MISMATCH for arguments or a fingerprint that do not fit; SIGNATURE for
            wrong direct arguments, for aggregate functions, and for a scalar function with `outer`; BAD_FRAME for steps
            that refer to later steps, and for wrong outputs.
    """

    def __init__(self, request: Request, registry: Registry, where: str) -> None:
        if request.calls:
            raise RejectedError(
                "BAD_FRAME", "Open has calls and steps; use one exchange for aggregates and another one for steps"
            )
        self.request = request
        self._where = where
        self.calls: list[BoundStep] = []
        for index, step in enumerate(request.steps):
            self.calls.append(self._bind(index, step, registry))
        self.schema = pa.schema(list(self._fields()))

    @property
    def has_table(self) -> bool:
        """Whether a step is a table function, which may return several rows for one."""
        return any(each.bound.function.is_table for each in self.calls)

    def check(self, accelerator: Accelerator) -> None:
        """Instantiate each class with its direct arguments, and compile functions declared `compile=True`."""
        for each in self.calls:
            demand_instance(each.bound)
            accelerator.demand(each.bound)

    def open(self, resources: Resources) -> OpenExpressions:
        """Return the expressions, with each function opened. Raises the errors of `OpenExpressions`."""
        return OpenExpressions(
            [each.step for each in self.calls],
            [each.bound for each in self.calls],
            self.request,
            self.schema,
            resources,
        )

    def _fields(self) -> Iterator[pa.Field]:
        if not self.request.outputs:
            raise RejectedError(
                "BAD_FRAME", "Open has steps and no outputs; give the number of at least one step as an output"
            )
        if self.has_table:
            yield pa.field(ROW, pa.int32(), nullable=False)
        for index, step in enumerate(self.request.outputs):
            if not 0 <= step < len(self.calls):
                raise RejectedError(
                    "BAD_FRAME",
                    f"output {index} refers to step {step}, but the last step is {len(self.calls) - 1}",
                )
            yield pa.field(f"output_{index}", self.calls[step].bound.result_type)
        if self.request.isolate_errors:
            yield pa.field(ERROR, ERROR_TYPE)

    def _bind(self, index: int, step: Step, registry: Registry) -> BoundStep:
        if step.function not in registry:
            raise unknown_function(step.function, registry, self._where)
        function = registry[step.function]
        if not isinstance(function, ScalarFunction):
            raise RejectedError(
                "SIGNATURE",
                f"{step.function} is an aggregate function, not a scalar or table function; use it in a group_by",
                function=step.function,
            )
        if step.outer and not function.is_table:
            raise RejectedError(
                "SIGNATURE",
                f"{step.function} is not a table function, so its step cannot be outer; leave outer out",
                function=step.function,
            )
        types = [self._type_of(index, step, argument) for argument in step.arguments]
        bound = BoundStep(step, function.bind(types, step.literals))
        if is_larger_than(bound.bound.result_type, depth=_TYPE_DEPTH_MAX, parts=_TYPE_PARTS_MAX):
            raise RejectedError(
                "LIMIT",
                f"the result of step {index} ({step.function}) has a type that is nested more than {_TYPE_DEPTH_MAX} "
                f"times or has more than {_TYPE_PARTS_MAX} types inside; nest fewer functions",
                function=step.function,
                limit="type",
            )
        check_fingerprint(step, bound.fingerprint, bound.bound.version, self._where)
        return bound

    def _type_of(self, index: int, step: Step, argument: StepArgument) -> pa.DataType:
        if argument.step is None:
            return column_of(self.request.columns, argument.column or "", step).type
        if not 0 <= argument.step < index:
            raise RejectedError(
                "BAD_FRAME",
                f"step {index} ({step.function}) takes the result of step {argument.step}; give an earlier step",
                function=step.function,
            )
        type_ = self.calls[argument.step].bound.result_type
        return type_ if argument.member is None else _member(type_, argument, step)


def _member(type_: pa.DataType, argument: StepArgument, step: Step) -> pa.DataType:
    members: Sequence[str] = [field.name for field in type_] if pa.types.is_struct(type_) else []
    if members.count(argument.member or "") != 1:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{step.function} takes the member {argument.member!r} of the result of step {argument.step}; its members "
            f"are {', '.join(members) or 'none'}",
            function=step.function,
        )
    return type_.field(argument.member).type
