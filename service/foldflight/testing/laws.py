"""The laws of functions, checked on generated data. Those of scalar and table functions are in `scalarlaws`.

A function that keeps the laws has the same outputs however an engine splits, merges and moves its input. Hypothesis
generates the data, and reduces rows that break a law to a minimal example.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, NoSuchExample

from foldflight.client.process import PROGRAMS, PROGRAMS_AT_ONCE
from foldflight.compiler.program import Program
from foldflight.errors import FoldflightError, RejectedError
from foldflight.fold.aggregate.calls import BoundCall, bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.mode import Mode
from foldflight.fold.request import Options, Resources
from foldflight.fold.signing import StateSigner
from foldflight.functions import AnyFunction, Call, Function, Registry, RowKind, ScalarFunction, function_of
from foldflight.functions.types.arrow import concat_batches, is_json
from foldflight.functions.types.serializer import views_in
from foldflight.functions.types.values import CastError, cast_results
from foldflight.lift.evaluate import evaluate
from foldflight.lift.lifting import lift_text, lifted_of
from foldflight.lift.plan import FieldOverflow, LiftPlan, SumOverflow
from foldflight.shipping.pickling import unpickled_copy
from foldflight.testing.scalarlaws import SCALAR_LAWS, Law, ScalarSubject, argument_types
from foldflight.testing.views import CachedViews

_S = TypeVar("_S")
_SIGNER = StateSigner([b"the key of the law checks only!!"])
_RESOURCES = Resources(_SIGNER, accelerator=PROGRAMS)
_SCALE = 1000
_WHOLE_MAX: Final = 1000
_FLAKY = "the law failed, and held when the same rows were tried again: the result does not depend on the rows alone"


_SKIP_NULLS: Final = (
    "\nA row has NULLs, which are None in Python: handle them, or declare @udaf(skip_nulls=True), which leaves such "
    "rows out"
)


@dataclass(frozen=True)
class LawResult:
    """The outcome of one law.

    Args:
        law: The name of the law.
        passed: Whether the law held; None if it does not apply.
        detail: Why it does not apply, or a minimal example that breaks it; empty if it held.
        cause: The error that broke it, without the rows; empty if it held, or if results differed.
    """

    law: str
    passed: bool | None
    detail: str = ""
    cause: str = ""


def check_laws(
    function: type | Callable[..., Any] | AnyFunction, *, literals: Mapping[str, Any] | None = None, examples: int = 100
) -> list[LawResult]:
    """Check every law of a function, pickled by value and unpickled as in Spark's workers.

    Args:
        function: A class or function under `@udaf`, `@udf` or `@udtf`, or a registered function.
        literals: Direct arguments, where the class needs them.
        examples: How many inputs each law is tried on.

    Returns:
        One result for each law of `LAWS`, or of `SCALAR_LAWS` for a scalar or table function.

    Raises:
        RejectedError: SIGNATURE, if `function` is not a function, its direct arguments are wrong, it refers to
            something that cannot be pickled, or it is declared `compile=True` and cannot be compiled.
    """
    known = function if isinstance(function, (Function, ScalarFunction)) else function_of(function)
    if known is None:
        raise RejectedError("SIGNATURE", f"{function!r} is not a function; decorate it with @udaf, @udf or @udtf")
    return list(iterate_laws(known, literals=literals, examples=examples))


def iterate_laws(
    function: AnyFunction, *, literals: Mapping[str, Any] | None = None, examples: int = 100
) -> Iterator[LawResult]:
    """Check the laws of a function one by one, as `check_laws` does, and yield each result when it is there."""
    (there,) = unpickled_copy([function])
    if isinstance(there, ScalarFunction):
        mapped = ScalarSubject(there, dict(literals or {}))
        inputs = _Inputs(rows_of(mapped.types, nulls=True), examples=examples)
        yield from (_check(law, mapped, inputs) for law in SCALAR_LAWS)
        return
    assert isinstance(there, Function)
    subject = _Subject(there, dict(literals or {}))
    inputs = _Inputs(rows_of(subject.types, nulls=_takes_nulls(subject)), examples=examples)
    hostile: _Inputs | None = None
    for law in LAWS:
        if law.hostile and hostile is None and law.needs(subject) is None:
            hostile = _Inputs(hostile_rows(subject.types), examples=examples)
        yield _check(law, subject, hostile if law.hostile and hostile is not None else inputs)


class _Subject:
    """One call of the function, and how to fold rows with it."""

    def __init__(
        self, function: Function, literals: Mapping[str, Any], types: Sequence[pa.DataType] | None = None
    ) -> None:
        self.function = function
        self.types = argument_types(function, literals) if types is None else list(types)
        self.names = tuple(f"argument_{index}" for index in range(len(self.types)))
        self.schema = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), *zip(self.names, self.types, strict=True)])
        self.registry = Registry() if function.name in Registry() else Registry([function])
        self.calls: list[BoundCall] = bind_calls(
            self.registry, [Call(function.name, self.names, literals=literals)], self.schema
        )
        PROGRAMS.demand(self.calls[0].bound)
        self.lifted = lifted_of(lift_text(self.calls[0].bound))
        self._whole: dict[int, tuple[Rows, Any]] = {}

    def whole(self, rows: Rows) -> Any:
        """Return the output of all rows in one chunk. Most laws ask for it, so it is computed once for a list."""
        if id(rows) not in self._whole:
            output = _output(self.folded(rows))
            if len(self._whole) >= _WHOLE_MAX:
                self._whole.clear()
            self._whole[id(rows)] = rows, output  # with the list, so that no other one has its id
        return self._whole[id(rows)][1]

    def new(self) -> Fold:
        return Fold(self.calls, resources=_RESOURCES)

    def chunk(self, rows: Sequence[Any], slot: int = 0, kind: RowKind = RowKind.INSERT) -> pa.RecordBatch:
        columns = [pa.array([slot] * len(rows), pa.int32()), pa.array([int(kind)] * len(rows), pa.int8())]
        columns += [pa.array([row[index] for row in rows], type_) for index, type_ in enumerate(self.types)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def folded(self, *chunks: Sequence[Any]) -> pa.RecordBatch:
        """Fold chunks of rows into one slot and return its state and output."""
        fold = self.new()
        for rows in chunks or ([],):
            fold.fold(self.chunk(rows))
        if not any(len(rows) for rows in chunks):
            return self._fresh(fold)
        return fold.collect()

    def state_of(self, rows: Sequence[Any], signs: Sequence[int]) -> Any:
        """Fold rows, of which those with the sign -1 are retracted, and return the state."""
        return self._signed(rows, signs).collect(outputs=False).column("state_0")[0].as_py()

    def output_of(self, rows: Sequence[Any], signs: Sequence[int]) -> Any:
        """Fold rows as `state_of` does, and return the output."""
        return self._signed(rows, signs).collect(states=False).column("output_0")[0].as_py()

    def _signed(self, rows: Sequence[Any], signs: Sequence[int]) -> Fold:
        fold = self.new()
        for row, sign in zip(rows, signs, strict=True):
            fold.fold(self.chunk([row], kind=RowKind.INSERT if sign > 0 else RowKind.DELETE))
        if not rows:
            self._touch(fold)
        return fold

    def _fresh(self, fold: Fold) -> pa.RecordBatch:
        self._touch(fold)
        return fold.collect()

    @staticmethod
    def _touch(fold: Fold) -> None:
        # A NULL state changes no accumulator, but marks the slot as dirty.
        state = pa.nulls(1, fold.schema.field("state_0").type)
        fold.merge_states(pa.RecordBatch.from_arrays([_zero_array(), state], names=["slot", "state_0"]))

    def merged(self, *parts: pa.RecordBatch) -> Any:
        fold = self.new()
        for part in parts:
            fold.merge_states(part)
        return _output(fold.collect())


def _zero_array() -> pa.Array:
    return pa.array([0], pa.int32())


def _output(batch: pa.RecordBatch) -> Any:
    return batch.column("output_0")[0].as_py()


def rows_of(types: Sequence[pa.DataType], *, nulls: bool) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Return a strategy for lists of rows. Values are small, so that their sums do not overflow."""
    values = [_values(type_) for type_ in types]
    if nulls:
        values = [st.none() | each for each in values]
    return st.lists(st.tuples(*values), max_size=12)


def _values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    kinds = pa.types
    if kinds.is_boolean(type_):
        return st.booleans()
    if kinds.is_integer(type_):
        least = 0 if kinds.is_unsigned_integer(type_) else -100
        return st.integers(least, 100)
    if kinds.is_floating(type_):
        # Sums of multiples of 1/8 are not rounded, so a difference means a broken law.
        numbers = st.integers(-_SCALE, _SCALE) | st.just(0)  # by which a function may divide
        return numbers.map(lambda number: number / 8)
    if kinds.is_decimal(type_):
        span = 10 ** min(type_.precision, 4) - 1
        return st.integers(-span, span).map(lambda number: decimal.Decimal(number).scaleb(-type_.scale))
    if kinds.is_string(type_):
        return st.text(max_size=5)
    if kinds.is_binary(type_):
        return st.binary(max_size=5)
    if kinds.is_date(type_):
        return st.dates(datetime.date(1990, 1, 1), datetime.date(2040, 1, 1))
    if kinds.is_timestamp(type_):
        zones = st.just(datetime.UTC) if type_.tz else st.none()
        earliest, latest = datetime.datetime(1990, 1, 1), datetime.datetime(2040, 1, 1)  # noqa: DTZ001 - zones are added
        return st.datetimes(earliest, latest, timezones=zones)
    if kinds.is_time(type_):
        return st.times()
    if kinds.is_duration(type_):
        return st.timedeltas(datetime.timedelta(0), datetime.timedelta(days=30))
    return _nested_values(type_)


def _nested_values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    kinds = pa.types
    if kinds.is_list(type_):
        return st.lists(_values(type_.value_type), max_size=3)
    if kinds.is_map(type_):
        return st.dictionaries(_values(type_.key_type), _values(type_.item_type), max_size=3).map(
            lambda each: list(each.items())
        )
    if kinds.is_struct(type_):
        return st.fixed_dictionaries({field.name: _values(field.type) for field in type_})
    if is_json(type_):
        return st.sampled_from(['{"a":1}', "[1,2]", "3", '"x"'])
    raise RejectedError("SIGNATURE", f"the law checks cannot generate values of type {type_}")


def hostile_rows(types: Sequence[pa.DataType]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Return a strategy for lists of rows with NULL and the values at which engines differ from Python."""
    return st.lists(st.tuples(*(st.none() | _hostile(type_) for type_ in types)), max_size=6)


def _hostile(type_: pa.DataType) -> st.SearchStrategy[Any]:
    kinds = pa.types
    if kinds.is_integer(type_):
        bits = type_.bit_width - kinds.is_signed_integer(type_)
        least, most = (-(1 << bits) if kinds.is_signed_integer(type_) else 0), (1 << bits) - 1
        edges = [least, least + 1, most, most - 1, 0, 1, 2, 5, *(() if least == 0 else (-1,)), 1 << (bits // 2)]
        return st.sampled_from(edges) | st.integers(least, most)
    if kinds.is_floating(type_):
        edge = [math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, 1.7976931348623157e308, 2.0**53, 0.1, -1.0]
        if type_ == pa.float32():
            edge = [math.nan, math.inf, -math.inf, -0.0, 0.0, 2.0**24, 0.5, -1.0]
        return st.sampled_from(edge)
    if kinds.is_decimal(type_):
        span = 10**type_.precision - 1
        # The usual context would round to 28 digits.
        exact = decimal.Context(prec=76)
        numbers = st.sampled_from([span, -span, 0, 1]) | st.integers(-span, span)
        return numbers.map(lambda number: decimal.Decimal(number).scaleb(-type_.scale, exact))
    if kinds.is_string(type_):
        # UTF-16 orders the last two differently than code points.
        return st.sampled_from(["", "a", "A", "\u00e9", "\uffff", "\U0001f600"]) | st.text(max_size=2)
    if kinds.is_binary(type_):
        return st.sampled_from([b"", b"\0", b"\xff", b"a" * 40_000]) | st.binary(max_size=2)
    if kinds.is_date(type_):
        return st.sampled_from([datetime.date.min, datetime.date.max, datetime.date(2000, 2, 29)]) | st.dates()
    if kinds.is_timestamp(type_):
        zone = datetime.UTC if type_.tz else None
        ends = [datetime.datetime.min, datetime.datetime.max, datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)]  # noqa: DTZ001, DTZ901 - zones are added
        return (st.sampled_from(ends) | _values(type_)).map(lambda each: each.replace(tzinfo=zone))
    if kinds.is_duration(type_):
        days = datetime.timedelta(days=(1 << 63) // 86_400_000_000)
        return st.sampled_from([-days, days, datetime.timedelta(microseconds=-1)]) | _values(type_)
    if kinds.is_list(type_):
        items = _hostile(type_.value_type)
        return st.lists(items, max_size=3) | st.lists(st.none() | items, max_size=2)
    if kinds.is_map(type_):
        keys, values = _values(type_.key_type), _hostile(type_.item_type)
        entries = st.dictionaries(keys, values, max_size=3) | st.dictionaries(keys, st.none() | values, max_size=2)
        return entries.map(lambda each: list(each.items()))
    if kinds.is_struct(type_):
        return st.fixed_dictionaries({field.name: st.none() | _hostile(field.type) for field in type_})
    return _values(type_)


Rows = list[tuple[Any, ...]]


def _splits(subject: _Subject, rows: Rows, cut: int) -> str | None:
    whole = subject.whole(rows)
    at = cut % (len(rows) + 1)
    parts = _output(subject.folded(rows[:at], rows[at:]))
    return _unless_same(whole, parts, f"two chunks, split after row {at}")


def _codec(subject: _Subject, rows: Rows, cut: int) -> str | None:
    whole = subject.whole(rows)
    at = cut % (len(rows) + 1)
    fold = subject.new()
    fold.merge_states(subject.folded(rows[:at]))
    fold.fold(subject.chunk(rows[at:]))
    return _unless_same(whole, _output(fold.collect()), f"state stored and loaded after row {at}")


def _merge_parts(subject: _Subject, rows: Rows, cut: int) -> str | None:
    at = cut % (len(rows) + 1)
    one, two = subject.folded(rows[:at]), subject.folded(rows[at:])
    whole = subject.whole(rows)
    return _unless_same(
        whole, subject.merged(one, two), f"the first {at} rows and the rest folded separately, then merged"
    )


def _merge_order(subject: _Subject, rows: Rows, cut: int) -> str | None:
    at = cut % (len(rows) + 1)
    one, two = subject.folded(rows[:at]), subject.folded(rows[at:])
    return _unless_same(
        subject.merged(one, two), subject.merged(two, one), f"parts split after row {at}, merged in both orders"
    )


def _merge_grouping(subject: _Subject, rows: Rows, cut: int) -> str | None:
    third = max(1, cut % (len(rows) + 1))
    parts = [subject.folded(rows[:third]), subject.folded(rows[third : 2 * third]), subject.folded(rows[2 * third :])]
    left = subject.merged(*parts)
    fold = subject.new()
    fold.merge_states(parts[1])
    fold.merge_states(parts[2])
    return _unless_same(left, subject.merged(parts[0], fold.collect()), "(a + b) + c against a + (b + c)")


def _retract_inverse(subject: _Subject, rows: Rows, cut: int) -> str | None:
    remaining = [row for index, row in enumerate(rows) if cut >> (index % 16) & 1]
    gone = [row for index, row in enumerate(rows) if not cut >> (index % 16) & 1]
    expected = _output(subject.folded(remaining))
    fold = subject.new()
    fold.fold(subject.chunk(rows))
    fold.fold(subject.chunk(gone[::-1], kind=RowKind.DELETE))
    output = _output(fold.collect()) if rows else expected
    return _unless_same(expected, output, f"retracted {gone!r}")


def _stored_views(subject: _Subject, rows: Rows, cut: int) -> str | None:
    """Fold rows while an engine keeps the entries of views, which are forgotten after some of the rows."""
    whole = subject.whole(rows)
    if not rows:
        return None

    def ask(asked: pa.RecordBatch, read: Callable[[Sequence[pa.RecordBatch]], Any], *, are_held: bool) -> Any:  # noqa: ARG001 - as in `Asking`
        return read(list(cached.resolve(asked)))

    fold = Fold(subject.calls, Options(keeps_views=True), Resources(_SIGNER, ask=ask))
    cached = CachedViews(fold, page=2)
    for index, row in enumerate(rows):
        fold.fold(subject.chunk([row]))
        if cut >> (index % 16) & 1:
            cached.commit(pa.Table.from_batches([fold.unsaved()]))
    output = _output(fold.collect())
    return _unless_same(
        whole,
        output,
        "entries of views were stored after some rows, and read again in another order; is a value changed in place "
        "and not put again, or does the result depend on the order of entries?",
    )


def _groups_apart(subject: _Subject, rows: Rows, cut: int) -> str | None:
    alone = subject.whole(rows)
    fold = subject.new()
    fold.fold(subject.chunk(rows, slot=0))
    fold.fold(subject.chunk(rows[: cut % (len(rows) + 1)], slot=1))
    fold.outputs(pa.array([1], pa.int32()))
    beside = fold.outputs(_zero_array()).column("output_0")[0].as_py()
    return _unless_same(alone, beside, "another group was folded at the same time; do accumulators share an object?")


def _repeatable(subject: _Subject, rows: Rows, _: int) -> str | None:
    fold = subject.new()
    fold.fold(subject.chunk(rows))
    first, second = fold.values_twice()
    return _unless_same(first, second, "get_value was called twice; does it change the accumulator?")


def _vectorised(subject: _Subject, rows: Rows, cut: int) -> str | None:
    return _both_forms(subject, rows, cut, "the scalar methods, then the vectorised ones")


def _bundled(subject: _Subject, rows: Rows, cut: int) -> str | None:
    """Compare `fold_bundle` with the other methods or, without these, with its own result row by row."""
    how = "the same rows one by one, then in bundles"
    return _both_forms(subject, rows, cut, how) or _values_after_rows(subject, rows, cut, how)


def _values_after_rows(subject: _Subject, rows: Rows, cut: int, how: str) -> str | None:
    """Compare the values after each row of two groups, where some rows are retracted again."""
    if not rows:
        return None
    batch = concat_batches([subject.chunk(rows, slot=0), subject.chunk(rows, slot=1), subject.chunk(rows, slot=0)])
    if subject.function.capabilities.retract:
        batch = concat_batches([batch, subject.chunk(rows[: cut % (len(rows) + 1)], slot=1, kind=RowKind.DELETE)])
    one, two = (
        Fold(calls, Options(row_outputs=True), Resources(_SIGNER)).fold_each(batch).column(0).to_pylist()
        for calls in (_scalar_calls(subject), subject.calls)
    )
    return _unless_same(one, two, f"{how}, the values after each row")


def _scalar_calls(subject: _Subject) -> list[BoundCall]:
    return [BoundCall(call.call, replace(call.bound, function=_scalar(call.bound.function))) for call in subject.calls]


def _both_forms(subject: _Subject, rows: Rows, cut: int, how: str) -> str | None:
    """Accumulate and retract rows in two slots with each form, and merge the states."""
    by_step = []
    for calls in (_scalar_calls(subject), subject.calls):
        fold, merged = (Fold(calls, resources=_RESOURCES) for _ in range(2))
        for part, kind in (
            (rows, RowKind.INSERT),
            (rows[: cut % (len(rows) + 1)], RowKind.DELETE),
            (rows, RowKind.INSERT),
        ):
            if kind is RowKind.INSERT or subject.function.capabilities.retract:
                for slot in (0, 1):
                    fold.fold(subject.chunk(part[slot:], slot=slot, kind=kind))
            results = fold.collect()
            if subject.function.capabilities.merge:
                merged.merge_states(results)
            by_step.append([*results.to_pylist(), *merged.collect().to_pylist()])
    steps = len(by_step) // 2
    return next(
        (
            broken
            for one, two in zip(by_step[:steps], by_step[steps:], strict=True)
            if (broken := _unless_same(one, two, how)) is not None
        ),
        None,
    )


def _compiled(subject: _Subject, rows: Rows, cut: int) -> str | None:
    """Compare states, results and errors of the interpreter and of compiled code, bit for bit."""
    one = _steps(subject, _scalar_calls(subject), Resources(_SIGNER), rows, cut)
    two = _steps(subject, subject.calls, Resources(_SIGNER, accelerator=PROGRAMS_AT_ONCE), rows, cut)
    for (step, expected), (_, compiled) in zip(one, two, strict=True):
        if expected != compiled:
            return f"{step}: interpreted {expected}, compiled {compiled}"
    return None


def _steps(
    subject: _Subject, calls: list[BoundCall], resources: Resources, rows: Rows, cut: int
) -> Iterator[tuple[str, str]]:
    """Yield what is done with rows, and the outcome as text.

    All rows are in slot 0, those without NULL in slot 1, and each alone in a slot of its own, so that an error in one
    slot does not hide the others.
    """
    parts = [rows, [row for row in rows if None not in row], *([row] for row in rows)]
    batch = concat_batches([subject.chunk(part, slot) for slot, part in enumerate(parts)])
    options = Options(isolate_errors=True)
    fold, merged = (Fold(calls, options, resources) for _ in range(2))
    yield "accumulated", _outcome_of(lambda: fold.fold(batch))
    yield "states and results", _outcome_of(fold.collect, _unordered(subject))
    if subject.function.capabilities.retract:
        gone = [subject.chunk(part[: cut % (len(part) + 1)], slot, RowKind.DELETE) for slot, part in enumerate(parts)]
        yield "some rows retracted", _outcome_of(lambda: fold.fold(concat_batches(gone)))
        yield "states and results after that", _outcome_of(fold.collect, _unordered(subject))
    states = Fold(calls, options, resources)
    states.fold(batch)
    stored = states.collect()
    merged.merge_states(stored)
    if subject.function.capabilities.merge:
        yield "the states merged twice", _outcome_of(lambda: merged.merge_states(stored))
    yield "states and results of the merged states", _outcome_of(merged.collect, _unordered(subject))
    known = subject.chunk(parts[1]) if cut % 2 else batch
    yield "the results after each row", _outcome_of(lambda: _after_each_row(calls, resources, known))


def _after_each_row(calls: list[BoundCall], resources: Resources, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the results after each row, or raise the error of the first row that has one.

    The interpreter checks the results of a chunk after its last row, so of several errors it may raise a later one.
    """
    options = Options(row_outputs=True)
    try:
        return Fold(calls, options, resources).fold_each(batch)
    except FoldflightError:
        fold = Fold(calls, options, resources)
        return concat_batches([fold.fold_each(batch.slice(at, 1)) for at in range(batch.num_rows)])


def _outcome_of(run: Callable[[], pa.RecordBatch | None], unordered: frozenset[str] = frozenset()) -> str:
    """Return a result or error as text, in which all values have all digits and zeros their signs.

    Args:
        run: Makes it.
        unordered: The attributes of states that are sets, whose order only Python knows; `value` is the whole state.
    """
    try:
        results = run()
    except FoldflightError as error:
        return f"{error.code}: {error.message} {error.slot} {error.row}"
    if results is None:
        return ""
    rows = results.to_pylist()
    for row in rows:
        state = row.get("state_0")
        if isinstance(state, bytes) and state[32:36] == b"FFP1":  # the processor chooses the sign of a NaN: not signed
            row["state_0"] = state[32:].replace(b"G\xff\xf8\0\0\0\0\0\0", b"G\x7f\xf8\0\0\0\0\0\0")
    for row in rows if unordered else ():
        state = row["state_0"]
        if isinstance(state, list):
            state.sort(key=repr)
        for name in unordered.intersection(state) if isinstance(state, dict) else ():
            state[name] = sorted(state[name], key=repr)
    return repr(rows)


def _unordered(subject: _Subject) -> frozenset[str]:
    bound = subject.calls[0].bound
    program = PROGRAMS_AT_ONCE.program(bound, bound.instantiate())
    fields = program.layout.fields if isinstance(program, Program) else ()
    return frozenset(field.name for field in fields if field.kind == "set")


def _scalar(function: Function) -> Function:
    return replace(function, vectorised=False, bundled=False, compile=False)


def _unless_same(expected: Any, actual: Any, how: str) -> str | None:
    return None if _same(expected, actual) else f"{how}: {expected!r} became {actual!r}"


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        # Floating-point addition is not associative: a difference by rounding does not break a law.
        both_nan = math.isnan(one) and math.isnan(two)
        return both_nan or math.isclose(one, two, rel_tol=1e-6, abs_tol=1e-6)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    return type(one) is type(two) and bool(one == two)


def _lifted(subject: _Subject, rows: Rows, cut: int) -> str | None:
    """Compare the interpreter's state and output with those of the lifted form; some rows are retracted."""
    lift = subject.lifted[0]
    assert lift is not None
    retracts = not lift.unretractable
    signs = [-1 if retracts and cut >> (index % 16) & 1 else 1 for index in range(len(rows))]
    plan = LiftPlan.of(lift, has_kinds=retracts)
    broken, is_error = _lifted_rows(subject, plan, rows, signs)
    if broken is None and is_error:
        # Of rows with NULL and of large totals nothing but the error was compared. Most of the rows alone have a state.
        alone = (_lifted_rows(subject, plan, [row], [sign])[0] for row, sign in zip(rows, signs, strict=True))
        broken = next((each for each in alone if each is not None), None)
    return broken


def _lifted_rows(subject: _Subject, plan: LiftPlan, rows: Rows, signs: list[int]) -> tuple[str | None, bool]:
    """Return what differs for these rows, or None, and whether nothing but an error was compared."""
    lift = plan.lift
    try:
        expected = subject.state_of(rows, signs)
    except FoldflightError as error:
        expected = error
    try:
        raising = [each.text for row in rows for each in lift.failures if evaluate(each.when, row)]
        results = [] if raising else [each.of_rows(rows, signs) for each in plan.aggregates]
    except (ArithmeticError, TypeError) as error:  # an engine would have NULL or another number
        return f"the lifted form cannot be computed: {type(error).__name__}: {error}", False
    if raising:
        if isinstance(expected, FoldflightError):
            return None, True
        return f"the lifted form raises {raising[0]}, and accumulate and retract do not", False
    columns = [pa.array([result], plan.type_of(index, subject.types)) for index, result in enumerate(results)]
    try:
        state = plan.states(columns, subject.calls[0].bound.state_type, 1)[0].as_py()
    except SumOverflow:
        return None, True  # an error that names the fold, and no wrong state
    except FieldOverflow as unfit:
        if isinstance(expected, FoldflightError) and expected.code == "OVERFLOW":
            return None, True
        return f"the lifted form overflows: {unfit}, and the interpreter has {expected!r}", False
    if isinstance(expected, FoldflightError):
        return f"accumulate or retract raises {expected}, and the lifted form has {state!r}", False
    if _identical(expected, state):
        return _finished(subject, plan, state, lambda: subject.output_of(rows, signs)), False
    states = f"the interpreter's state is {expected!r}, and that of the lifted form {state!r}"
    return f"signs of the rows {signs}: {states}", False


def _finished(subject: _Subject, plan: LiftPlan, state: Any, output: Callable[[], Any]) -> str | None:
    """Compare the interpreter's output with what the lifted form makes of the state."""
    outcome = plan.lift.outcome
    if outcome.reason:
        return None
    fields = {"": state} if [each.name for each in plan.lift.fields] == [""] else state
    try:
        expected = output()
    except FoldflightError as error:
        expected = error
    actual: Any
    try:
        raised = [each.text for each in outcome.failures if evaluate(each.when, fields)]
        values = [evaluate(each.value, fields) for each in outcome.parts if evaluate(each.when, fields)]
    except OverflowError as error:
        return None if plan.outcome_reason else f"the lifted get_value overflows for the state {state!r}: {error}"
    if len(raised) + len(values) != 1:
        return f"the lifted get_value has {values} and raises {raised} for the state {state!r}"
    try:
        actual = raised[0] if raised else cast_results(values, subject.calls[0].bound.result_type)[0].as_py()
        fails = bool(raised)
    except CastError as error:
        actual, fails = str(error), True
    if fails and isinstance(expected, FoldflightError):
        return None
    if not fails and not isinstance(expected, FoldflightError) and _identical(expected, actual):
        return None
    return f"for the state {state!r} get_value has {expected!r}, and its lifted form {actual!r}"


def _identical(one: Any, two: Any) -> bool:
    """Return whether two states are the same. NaN equals itself; of 0.0 and -0.0 either may be the least value."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_identical(one[key], two[key]) for key in one)
    both_nan = one != one and two != two  # noqa: PLR0124 - only NaN differs from itself
    return type(one) is type(two) and (both_nan or bool(one == two))


def _needs_merge(subject: _Subject) -> str | None:
    return None if subject.function.capabilities.merge else "it has no merge"


def _needs_unordered_merge(subject: _Subject) -> str | None:
    return _needs_merge(subject) or (
        None if subject.function.capabilities.deterministic else "it is not deterministic: the order of rows may matter"
    )


def _needs_retract(subject: _Subject) -> str | None:
    return None if subject.function.capabilities.retract else "it has no retract"


def _needs_vectorised(subject: _Subject) -> str | None:
    return None if subject.function.vectorised else "it has no vectorised methods"


def _needs_bundled(subject: _Subject) -> str | None:
    return None if subject.function.bundled else "it has no fold_bundle"


def _needs_views(subject: _Subject) -> str | None:
    return None if views_in(subject.function.serializer) else "its accumulator has no views"


def _needs_lift(subject: _Subject) -> str | None:
    lift, reason = subject.lifted
    return None if lift is not None else f"it is not lifted: {reason}"


def _needs_compiled(subject: _Subject) -> str | None:
    fold = Fold(subject.calls, resources=Resources(_SIGNER, accelerator=PROGRAMS_AT_ONCE))
    try:
        mode = fold.kinds[0]
    finally:
        fold.close()
    if mode is Mode.COMPILED:
        return None
    reason = PROGRAMS_AT_ONCE.folding(subject.function).reason
    return f"it is {mode}" + (f": {reason}" if reason else "")


LAWS: tuple[Law[_Subject], ...] = (
    Law("any split of the rows", _splits),
    Law("state stored and loaded", _codec),
    Law("merge of parts", _merge_parts, _needs_merge),
    Law("merge in any order", _merge_order, _needs_unordered_merge),
    Law("merge in any grouping", _merge_grouping, _needs_merge),
    Law("retract undoes accumulate", _retract_inverse, _needs_retract),
    Law("groups are independent", _groups_apart),
    Law("get_value changes nothing", _repeatable),
    Law("vectorised methods agree", _vectorised, _needs_vectorised),
    Law("the bundled form agrees", _bundled, _needs_bundled),
    Law("the lifted form agrees", _lifted, _needs_lift, hostile=True),
    Law("the compiled form agrees", _compiled, _needs_compiled, hostile=True),
    Law("entries of views stored and read", _stored_views, _needs_views),
)


class _Inputs:
    """The rows that every law of a function is tried on. They are generated once, which takes as long as a law."""

    def __init__(self, rows: st.SearchStrategy[Rows], *, examples: int) -> None:
        self._strategy = st.tuples(rows, st.integers(0, 2**16 - 1))
        self._examples = examples
        self.all: list[tuple[Rows, int]] = []
        self.broken: list[tuple[Rows, int]] = []  # the minimal input of each error so far
        with contextlib.suppress(NoSuchExample):
            self.first(self._keep)

    def _keep(self, drawn: tuple[Rows, int]) -> bool:
        self.all.append(drawn)
        return False

    def first(self, condition: Callable[[tuple[Rows, int]], bool]) -> tuple[Rows, int]:
        """Return a minimal input that meets a condition. Raises NoSuchExample, or Flaky."""
        return find(
            self._strategy,
            condition,
            settings=settings(
                max_examples=self._examples,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.generate, Phase.shrink),
            ),
        )


def _check(law: Law[_S], subject: _S, inputs: _Inputs) -> LawResult:
    reason = law.needs(subject)
    if reason is not None:
        return LawResult(law.name, None, reason)
    skips = not isinstance(subject, _Subject) or subject.function.skip_nulls
    return _tried(law.name, partial(law.holds, subject), inputs, of_nulls="" if skips else _SKIP_NULLS)


def _tried(name: str, holds: Callable[[Rows, int], str | None], inputs: _Inputs, *, of_nulls: str) -> LawResult:
    """Try a law on all inputs, and look for a minimal one if it is broken; `of_nulls` is the remedy if it has NULLs."""
    # The error of another law breaks this one, too, in most cases, and its rows are minimal already.
    known = next((drawn for drawn in inputs.broken if _outcome(holds, *drawn)[1]), None)
    broken = known or next((drawn for drawn in inputs.all if _outcome(holds, *drawn)[0] is not None), None)
    if broken is None:
        return LawResult(name, True)
    if known is None:
        try:
            broken = inputs.first(lambda drawn: _outcome(holds, *drawn)[0] is not None)
        except NoSuchExample:
            pass  # The search draws other inputs: the one that broke the law is shown as it is.
        except Flaky:
            return LawResult(name, False, _FLAKY)
    rows, cut = broken
    difference, cause = _outcome(holds, rows, cut)
    if cause:
        inputs.broken.append(broken)
    has_nulls = any(value is None for row in rows for value in row)
    remedy = of_nulls if cause and has_nulls else ""
    return LawResult(name, False, f"rows {rows!r}; {difference or _FLAKY}{remedy}", cause)


def _outcome(holds: Callable[[Rows, int], str | None], rows: Rows, cut: int) -> tuple[str | None, str]:
    """Return what broke the law, or None, and its cause if that is an error."""
    try:
        return holds(rows, cut), ""
    except FoldflightError as error:
        error.slot = None  # the rows tell the place; only laws know slots
        return str(error), f"{error.code}: {error.message}"


def _takes_nulls(subject: _Subject) -> bool:
    """Return whether the function accepts NULLs. A function that raises on None breaks no law."""
    row = tuple(None for _ in subject.types)
    try:
        subject.folded([row])
    except FoldflightError:
        return False
    return True
