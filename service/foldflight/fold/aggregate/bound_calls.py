"""Calls bound to functions and columns, the choice of their accumulators, and the schema of their results."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import pyarrow as pa

from foldflight.errors import FoldflightError, FunctionError, RejectedError
from foldflight.fold.accelerator import Accelerator
from foldflight.fold.aggregate.bundle_accumulators import BundleAccumulators
from foldflight.fold.aggregate.distinct import ROWS, Distinct, RowsSerializer, key_type
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators
from foldflight.fold.aggregate.row_multiset import RowMultiset, counted_serializer
from foldflight.fold.aggregate.state_codecs import StateOrigin
from foldflight.fold.aggregate.vectorised_accumulators import vectorised_accumulators
from foldflight.fold.aggregate.view_accumulators import AskView, ViewAccumulators
from foldflight.fold.failures import ERROR, ERROR_TYPE, Failures, user_failure
from foldflight.fold.resources import Resources
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import BoundFunction, BoundScalar, Function
from foldflight.functions.query.call import Call, Options, Step
from foldflight.functions.registry import Registry, unknown_function
from foldflight.functions.types.arrow import is_nested
from foldflight.functions.types.sql import sql_name
from foldflight.functions.types.values import exact_types
from foldflight.functions.types.views import ViewSpec

_KIND: Final = "kind"


@dataclass(frozen=True)
class BoundCall:
    """One call with its function and types.

    Args:
        call: The call.
        bound: Its function, bound to the types of its arguments.
        keys: The types of the keys of its order.
        rows: The layout of the view of its different rows, if it is DISTINCT and the engine keeps them; otherwise None.
    """

    call: Call
    bound: BoundFunction
    keys: tuple[pa.DataType, ...] = ()
    rows: RowsSerializer | None = None

    @cached_property
    def is_counted(self) -> bool:
        """Whether its states are counted rows rather than the function's accumulators."""
        return self.call.distinct or self.call.materialize or bool(self.call.order)

    @property
    def input_types(self) -> tuple[pa.DataType, ...]:
        """The types to which its arguments are cast."""
        return self.bound.input_types

    @property
    def result_type(self) -> pa.DataType:
        """The type of its outputs."""
        return self.bound.result_type

    @cached_property
    def state_type(self) -> pa.DataType:
        """The type of its states."""
        if self.rows is not None:
            return Distinct.state_type(self.bound, self.rows)
        return self.row_list if self.is_counted else self.bound.state_type

    @property
    def row_list(self) -> pa.DataType:
        """The type of states that are the list of all counted rows."""
        return counted_serializer(self.bound, self.keys).arrow

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of its states, as 16 hexadecimal digits."""
        if not self.is_counted:
            return self.bound.fingerprint
        kind = "distinct" if self.call.distinct else "materialized"
        if self.rows is not None:
            kind += ", rows in a view"
        for order, type_ in zip(self.call.order, self.keys, strict=True):
            kind += f" by {type_}, descending {order.descending}, nulls first {order.nulls_first}"
        return hashlib.sha256(f"{kind} {self.bound.fingerprint}".encode()).hexdigest()[:16]

    @cached_property
    def columns(self) -> list[tuple[str, pa.DataType, tuple[str, str] | None]]:
        """The columns of its rows: arguments, then keys of its order.

        Each has its name, the type to which it is cast, and what columns have in common that are shared; None if it is
        not.
        """
        types = (*self.bound.input_types, *self.keys)
        return [
            (name, type_, None if exact_types(type_) is None else (name, str(type_)))
            for name, type_ in zip(self.call.columns, types, strict=True)
        ]

    @property
    def can_retract(self) -> bool:
        """Whether it retracts rows; always true for counted rows that are folded again for each value."""
        return (self.is_counted and self.rows is None) or self.bound.function.capabilities.retract

    @property
    def can_merge(self) -> bool:
        """Whether it merges states; always true for counted rows, unless the engine keeps them."""
        return self.rows is None if self.is_counted else self.bound.function.capabilities.merge

    @property
    def can_migrate(self) -> bool:
        """Whether it converts states of other versions; always true for counted rows, which do not depend on one."""
        return self.is_counted or self.bound.function.capabilities.migrate

    @property
    def codec(self) -> str:
        """The codec of its states: the function's codec, or `rows` if rows are counted."""
        return "rows" if self.is_counted else self.bound.function.capabilities.codec

    @property
    def is_invertible(self) -> bool:
        """Whether a row may be retracted before it has been accumulated; true for counted rows that are retracted."""
        return self.can_retract if self.is_counted else self.bound.function.capabilities.invertible

    @property
    def value_varies(self) -> bool:
        """Whether the values of one state may differ. Values of built-in functions depend on the order of rows only."""
        return not self.bound.function.is_deterministic and not self.bound.function.is_built_in

    @property
    def rows_at_once(self) -> int:
        """The groups whose values a process computes at once, if `get_value` is async; otherwise 0."""
        bounds = self.bound.function.bounds
        return 0 if bounds is None else bounds.rows_at_once

    @cached_property
    def views(self) -> tuple[ViewSpec, ...]:
        """The views of its states. Counted rows are one, if the engine keeps them, and otherwise have none."""
        if self.rows is not None:
            prefetch = tuple(range(len(self.bound.input_types)))
            return (ViewSpec(ROWS, self.rows.key.arrow, self.rows.value.arrow, prefetch),)
        return () if self.is_counted else self.bound.views

    def accumulators(
        self, options: Options, resources: Resources, failures: Failures, ask: AskView | None
    ) -> GroupsAccumulator:
        """Return its accumulators, without any slot, after the function's `open`.

        The function's own methods define them: row by row, or with views, or in bundles. A faster form takes
        their place if there is one: of the function itself (Java), its vectorised methods, or the accelerator. A
        call that counts rows has these inside.

        Args:
            options: How the call is evaluated.
            resources: What the process gives it.
            failures: Records the slots that fail.
            ask: Asks an engine that keeps views for entries of one; None if there is no such engine.

        Raises:
            FunctionError: USER_CODE, if the class cannot be instantiated or its `open` raises.
            RejectedError: SETTINGS, if states would be pickled and there is no signer; SIGNATURE, for a function that
                is declared `compile=True` and cannot be compiled.
        """
        bound, signer = self.bound, resources.signer
        context = FunctionContext(
            bound.function.name, job_parameters=options.job_parameters, metrics=resources.metrics, log=resources.log
        )
        inner: InterpretedAccumulators
        if bound.views:
            asks = None if self.is_counted else ask
            inner = ViewAccumulators(bound, context=context, signer=signer, failures=failures, ask=asks)
        elif bound.function.bundled:
            inner = BundleAccumulators(bound, context=context, signer=signer, failures=failures)
        else:
            inner = InterpretedAccumulators(
                bound, context=context, signer=signer, failures=failures, resources=resources
            )
        try:
            folding = _fastest(inner, resources.accelerator)
            if self.rows is not None:
                assert ask is not None  # the rows are a view only if an engine keeps it
                return Distinct(folding, bound, self.rows, failures=failures, ask=ask)
            if not self.is_counted:
                return folding
            return RowMultiset(
                folding,
                bound=bound,
                failures=failures,
                context=context,
                each_once=self.call.distinct,
                order=self.call.order,
                keys=self.keys,
            )
        except FoldflightError:
            with contextlib.suppress(FunctionError):  # the first error is the cause
                inner.close()
            raise


def _fastest(inner: InterpretedAccumulators, accelerator: Accelerator) -> GroupsAccumulator:
    """Return the fastest accumulators for the function of an interpreter. Raises RejectedError SIGNATURE."""
    if inner.methods.loops is not None:
        return inner.methods.loops(inner)
    if isinstance(inner, (BundleAccumulators, ViewAccumulators)):
        return inner
    in_table = vectorised_accumulators(inner) if inner.bound.function.folds_many else None
    return in_table or accelerator.accumulators(inner)


def bind_calls(
    registry: Registry, calls: Sequence[Call], schema: pa.Schema, *, where: str = "here", keeps_views: bool = False
) -> list[BoundCall]:
    """Bind calls to the functions of a registry and to the columns of a chunk.

    Args:
        registry: Functions by name.
        calls: The calls.
        schema: The schema of the chunks.
        where: The location of the functions, for messages, because the servers of a fleet may differ.
        keeps_views: Whether the engine keeps the entries of views.

    Raises:
        RejectedError: UNKNOWN_FUNCTION; SCHEMA_MISMATCH for a missing column, a wrong number or type of arguments, or a
            function that is not the one the engine expects; SIGNATURE for direct arguments.
    """
    return [_bind(registry, call, schema, where, keeps_views=keeps_views) for call in calls]


def demand_instance(bound: BoundFunction | BoundScalar) -> None:
    """Instantiate the author's class to check its direct arguments, and drop the instance.

    Raises:
        RejectedError: SIGNATURE, if `__init__` raises and the call has direct arguments.
        FunctionError: USER_CODE, if it raises without direct arguments, or is interrupted.
    """
    try:
        if isinstance(bound.function.source, type):
            bound.function.source(**bound.literals)
    except RejectedError:  # it cannot run here at all
        raise
    except (Exception, SystemExit) as error:
        failure = user_failure(bound.function.name, "__init__", error)
        if failure.limit is not None or not bound.literals:
            raise failure from error
        literals_text = ", ".join(f"{name}={value!r}" for name, value in bound.literals.items())
        raise RejectedError(
            "SIGNATURE",
            f"{bound.function.name} does not take {literals_text}: {failure.message}",
            function=bound.function.name,
            trace=failure.trace,
        ) from error


def _bind(registry: Registry, call: Call, schema: pa.Schema, where: str, *, keeps_views: bool) -> BoundCall:
    if call.function not in registry:
        raise unknown_function(call.function, registry, where)
    function = registry[call.function]
    if not isinstance(function, Function):
        use = "join_lateral" if function.is_table else "with_columns"
        raise RejectedError(
            "SIGNATURE",
            f"{call.function} is a {function.kind} function, which does not aggregate rows; use it in {use}",
            function=call.function,
        )
    types = [column_of(schema, name, call).type for name in call.arguments]
    if call.filter is not None and not pa.types.is_boolean(column_of(schema, call.filter, call).type):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the condition {call.filter!r} of {call.function} is {sql_name(schema.field(call.filter).type)}, but a "
            "condition must be BOOLEAN; write a comparison",
            function=call.function,
        )
    if call.distinct and not call.arguments:
        raise RejectedError(
            "SIGNATURE",
            f"{call.function} without arguments cannot be DISTINCT; name the columns to compare",
            function=call.function,
        )
    bound = BoundCall(call, function.bind(types, call.literals), _key_types(call, schema))
    # An engine that was planned with the list of all rows expects its fingerprint.
    if keeps_views and call.fingerprint != bound.fingerprint and _fits_view(bound, schema):
        bound = replace(bound, rows=RowsSerializer(bound.input_types))
    check_fingerprint(call, bound.fingerprint, bound.bound.version, where)
    return bound


def _fits_view(bound: BoundCall, schema: pa.Schema) -> bool:
    """Return whether the rows of a call can be a view: it is DISTINCT, and no value needs all rows."""
    call, function = bound.call, bound.bound.function
    is_distinct = call.distinct and not call.order and not call.materialize and not bound.bound.views
    retracts = function.capabilities.retract or _KIND not in schema.names
    return is_distinct and retracts and all(key_type(type_) is not None for type_ in bound.input_types)


def check_fingerprint(call: Call | Step, actual: str, version: str, where: str) -> None:
    """Raise RejectedError SCHEMA_MISMATCH if a call or step expects another function than the one found.

    Args:
        call: The call or step.
        actual: The fingerprint of the call or step with the function that was found.
        version: The version of that function.
        where: The location of the functions.
    """
    if call.fingerprint not in ("", actual):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{call.function} is not the function that the engine expects: its fingerprint {where} is "
            f"{actual} (version {version}), expected {call.fingerprint}; "
            "deploy the same version on all servers, or plan the query again",
            function=call.function,
        )


def _key_types(call: Call, schema: pa.Schema) -> tuple[pa.DataType, ...]:
    """Return the types of the keys of a call's order. Raises RejectedError SCHEMA_MISMATCH or SIGNATURE."""
    for order in call.order:
        type_ = column_of(schema, order.column, call).type
        if is_nested(type_) or isinstance(type_, pa.BaseExtensionType) or pa.types.is_interval(type_):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{call.function} cannot be ordered by {order.column!r} of the type {sql_name(type_)}; order by "
                "numbers, texts, bytes, dates or times",
                function=call.function,
            )
        if call.distinct and order.column not in call.arguments:
            raise RejectedError(
                "SIGNATURE",
                f"{call.function} is DISTINCT, so it can be ordered only by its arguments, but {order.column!r} is not "
                "an argument; order by an argument, or leave DISTINCT out",
                function=call.function,
            )
    return tuple(column_of(schema, order.column, call).type for order in call.order)


def column_of(schema: pa.Schema, name: str, call: Call | Step) -> pa.Field:
    """Return a column that a call or step names. Raises RejectedError SCHEMA_MISMATCH."""
    if schema.get_field_index(name) < 0:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{call.function} refers to a column {name!r} that the chunk does not have, or has twice; "
            f"its columns are {', '.join(schema.names) or '(none)'}",
            function=call.function,
        )
    return schema.field(name)


def result_schema(calls: Sequence[BoundCall], *, isolates: bool = False) -> pa.Schema:
    """Return the schema of a fold's results: `slot`, then `state_i` and `output_i` of each call i.

    If errors are isolated, the last column is `error`. The states and outputs of slots with an error are NULL.
    """
    fields = [pa.field("slot", pa.int32(), nullable=False)]
    for index, call in enumerate(calls):
        identity = {
            "function": call.bound.function.name,
            "version": call.bound.version,
            "fingerprint": call.fingerprint,
            "codec": call.codec,
        }
        fields.append(pa.field(f"state_{index}", call.state_type, metadata=identity))
        fields.append(pa.field(f"output_{index}", call.result_type))
    if isolates:
        fields.append(pa.field(ERROR, ERROR_TYPE))
    return pa.schema(fields)


def written_by(field: pa.Field, call: BoundCall) -> StateOrigin | None:
    """Return the origin of a column of states if another version has written it, or None if this version has.

    Raises:
        RejectedError: STATE_MISMATCH, for states of another version that the call cannot convert.
    """
    about = {
        name.decode(errors="replace"): value.decode(errors="replace") for name, value in (field.metadata or {}).items()
    }
    origin = StateOrigin(about.get("version", ""), about.get("fingerprint", call.fingerprint), about.get("codec", ""))
    function = call.bound.function
    if origin.fingerprint == call.fingerprint:
        if field.type != call.state_type:
            raise _foreign(call, f"its type is {field.type}, expected {call.state_type}")
        return None
    reason = f"its fingerprint is {origin.fingerprint}, expected {call.fingerprint}"
    if about.get("function", function.name) != function.name:
        raise _foreign(call, f"{reason}, because it belongs to {about['function']}")
    if call.rows is not None and (origin.fingerprint, field.type) == (
        replace(call, rows=None).fingerprint,
        call.row_list,
    ):
        return origin
    if origin.version in ("", call.bound.version):
        raise _foreign(call, reason)
    if "rows" in (origin.codec, call.codec) and not (origin.codec == call.codec and _has_rows(field.type, call)):
        raise _foreign(call, f"{reason}, and only one of the two keeps rows (DISTINCT or materialized)")
    if not call.can_migrate:
        raise _foreign(call, f"{reason}, and {function.name} has no migrate for states of version {origin.version}")
    return origin


def _has_rows(type_: pa.DataType, call: BoundCall) -> bool:
    """Return whether states of a type have all rows of a call that keeps rows."""
    if call.rows is None:
        return bool(type_ == call.state_type)
    has_view = pa.types.is_struct(type_) and type_.get_field_index(ROWS) >= 0
    return bool(type_ == call.row_list or (has_view and type_.field(ROWS).type == call.rows.arrow))


def _foreign(call: BoundCall, reason: str) -> RejectedError:
    """Return the error for a state that a call cannot use."""
    name = call.bound.function.name
    return RejectedError(
        "STATE_MISMATCH",
        f"the state given for {name} version {call.bound.version} belongs to another function, version or "
        f"schema: {reason}; raise the version of a changed function and define migrate(self, version, state), run the "
        "version that wrote the state, or start from empty state",
        function=name,
    )
