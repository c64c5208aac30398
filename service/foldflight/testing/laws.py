"""The laws of aggregate functions, checked on generated data. Laws of other functions are in `scalarlaws`.

A function that keeps the laws has the same outputs however an engine splits, merges and moves its input. Hypothesis
generates the data, and reduces rows that break a law to a minimal example.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, NoSuchExample

from foldflight.client.exchange import PROGRAMS, PROGRAMS_AT_ONCE
from foldflight.engine.query.layout import chunk_names
from foldflight.errors import FoldflightError, RejectedError
from foldflight.extensions import Extension
from foldflight.fold.aggregate.bound_calls import BoundCall, bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.aggregate.interpreter import CLASS_CHANGED
from foldflight.fold.aggregate.state_codecs import StateCodec, state_codec
from foldflight.fold.mode import Mode
from foldflight.fold.pickles import StateSigner
from foldflight.fold.resources import Resources
from foldflight.functions import AnyFunction, Call, Function, Registry, RowKind, ScalarFunction, function_of
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.query.call import Options
from foldflight.functions.types.arrow import concat_batches, is_json
from foldflight.functions.types.serializer import views_in
from foldflight.functions.types.sql import sql_name
from foldflight.functions.types.vectors import is_vector
from foldflight.lift import MISSING
from foldflight.shipping.pickling import unpickled_copy
from foldflight.testing.cached_views import CachedViews
from foldflight.testing.scalarlaws import (
    SCALAR_LAWS,
    Drawn,
    Law,
    Rows,
    ScalarSubject,
    argument_types,
    one_by_one,
)

_S = TypeVar("_S")
Known = Mapping[int, Sequence[Any]]
"""The values of some arguments, by place; the others are generated."""
_Draw = Callable[[Sequence[pa.DataType], Known], st.SearchStrategy[Rows]]
_SEEDS: Final = 5  # other ones that are tried for each row that may be left out
EXAMPLES: Final = 100
_NONE: Final[Known] = MappingProxyType({})
_SIGNER = StateSigner([b"the key of the law checks only!!"])
_RESOURCES = Resources(_SIGNER, accelerator=PROGRAMS)
EFFECT: Final = "rows change the result"
"""The law that does not apply to a function whose result no row changes, which `check` says at the end as well."""
_SCALE = 1000
_AT_A_TIME: Final = 10
_FLAKY = "the law failed, and held when the same rows were tried again: the result does not depend on the rows alone"
_CALLS_OUT: Final = (
    "it is async, and generated rows would be sent to what it calls; test it against a model of your own, through "
    "connect(...)"
)
_HANDLE_NULLS: Final = "handle them, or declare @udaf(skip_nulls=True), which leaves such rows out"
_RETURN_SOMETHING: Final = (
    "if accumulate or get_value lacks a `return`, add it; if only some values matter, give them in examples"
)
_SKIP_NULLS: Final = f" have NULLs, which are None in Python: {_HANDLE_NULLS}"


@dataclass(frozen=True)
class LawResult:
    """The outcome of one law.

    Args:
        law: The name of the law.
        passed: Whether the law held; None if it does not apply.
        detail: Why it does not apply, or a minimal example that breaks it. If the law of the compiled form held, which
            methods are interpreted, and why; mostly empty.
        cause: The error that broke it, without the rows; empty if it held, or if results differed.
    """

    law: str
    passed: bool | None
    detail: str = ""
    cause: str = ""


def check_laws(
    function: type | Callable[..., Any] | AnyFunction,
    *,
    literals: Mapping[str, Any] | None = None,
    examples: int | Mapping[str, Sequence[Any]] = EXAMPLES,
) -> list[LawResult]:
    """Check every law of a function, pickled by value and unpickled as in Spark's workers.

    Args:
        function: A class or function under `@udaf`, `@udf` or `@udtf`, or a registered function.
        literals: Direct arguments, where the class needs them.
        examples: How many inputs each law is tried on. Or, for a function that takes only some values of a type, these
            values by the name of the argument: `{"code": ["EUR", "USD"]}`. Then each law is tried on 100 inputs, whose
            other arguments are generated. None is among the values if the function takes NULL.

    Returns:
        One result for each law of `LAWS`, or of `SCALAR_LAWS` for a scalar or table function. No law applies to an
        async function, whose declaration and pickle are checked.

    Raises:
        RejectedError: SIGNATURE, if `function` is not a function, its direct arguments are wrong, `examples` names what
            is no argument or has values that do not fit its type, it refers to something that cannot be pickled, or it
            is declared `compile=True` and cannot be compiled.

    >>> from foldflight import udf
    >>> @udf
    ... def price(code: str) -> int: return {"EUR": 100, "USD": 92}[code]
    >>> [result.passed for result in check_laws(price, examples={"code": ["EUR", "USD"]})]
    [True, True, True, True, True]
    """
    author_function = function if isinstance(function, (Function, ScalarFunction)) else function_of(function)
    if author_function is None:
        raise RejectedError("SIGNATURE", f"{function!r} is not a function; decorate it with @udaf, @udf or @udtf")
    if isinstance(examples, int):
        return list(iterate_laws(author_function, literals=literals, examples=examples))
    if not isinstance(examples, Mapping):
        raise RejectedError(
            "SIGNATURE",
            f"examples is {examples!r}; give a number of inputs, or lists of values by the name of an argument",
        )
    return list(iterate_laws(author_function, literals=literals, values=examples))


def iterate_laws(
    function: AnyFunction,
    *,
    literals: Mapping[str, Any] | None = None,
    examples: int = EXAMPLES,
    values: Mapping[str, Sequence[Any]] | None = None,
) -> Iterator[LawResult]:
    """Check the laws of a function one by one, as `check_laws` does, and yield each result when it is there.

    Args:
        function: The function.
        literals: Direct arguments, where the class needs them.
        examples: How many inputs each law is tried on.
        values: The values of some arguments, by name.
    """
    (there,) = unpickled_copy([function])
    if there.bounds is not None:
        _by_place(there, argument_types(there, dict(literals or {})), values or {})
        laws = SCALAR_LAWS if isinstance(there, ScalarFunction) else LAWS
        yield from (LawResult(law.name, None, _CALLS_OUT) for law in laws)
        return
    if isinstance(there, ScalarFunction):
        scalar_subject = ScalarSubject(there, dict(literals or {}))
        known_values = _by_place(there, scalar_subject.types, values or {})
        inputs = _Inputs(rows_with_nulls, scalar_subject.types, known_values, examples=examples)
        yield from (_check(law, scalar_subject, inputs) for law in SCALAR_LAWS)
        return
    assert isinstance(there, Function)
    subject = _Subject(there, dict(literals or {}))
    known_values = _by_place(there, subject.types, values or {})
    draw = rows_with_nulls if subject.error_at_nulls is None else rows_of
    inputs = _Inputs(draw, subject.types, known_values, examples=examples)
    subject.inputs = inputs.all
    hostile: _Inputs | None = None
    for law in LAWS:
        if law.hostile and hostile is None and law.needs(subject) is None:
            hostile = _Inputs(hostile_rows, subject.types, known_values, examples=examples)
        yield _check(law, subject, hostile if law.hostile and hostile is not None else inputs)


def _by_place(function: AnyFunction, types: Sequence[pa.DataType], values: Mapping[str, Sequence[Any]]) -> Known:
    """Return the values of arguments by their places. Raises RejectedError SIGNATURE, if they do not fit."""
    names = function.input_names[: len(types)]
    values_by_place = {}
    for name, each in values.items():
        if name not in names:
            raise RejectedError(
                "SIGNATURE",
                f"examples has values for {name!r}, and {function.signature} has the arguments {', '.join(names)}",
                function=function.name,
            )
        place = names.index(name)
        if isinstance(each, (str, bytes)):
            raise RejectedError(
                "SIGNATURE",
                f"examples has {each!r} for {name!r}, which is one value; give a list of values: [{each!r}]",
                function=function.name,
            )
        try:
            pa.array(list(each), types[place])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise RejectedError(
                "SIGNATURE",
                f"the values of {name!r} in examples, {each!r}, are no list of {sql_name(types[place])}: {error}",
                function=function.name,
            ) from error
        if not len(each):
            raise RejectedError(
                "SIGNATURE", f"examples has no value for {name!r}; leave it out", function=function.name
            )
        values_by_place[place] = list(each)
    return values_by_place


class Interpreter(Protocol):
    """The states and outputs with which a lifted form is compared."""

    def state_of(self, rows: Sequence[Any], signs: Sequence[int]) -> Any:
        """Fold rows, of which those with the sign -1 are retracted, and return the state."""

    def output_of(self, rows: Sequence[Any], signs: Sequence[int]) -> Any:
        """Fold rows as `state_of` does, and return the output."""


class LiftedForm(Protocol):
    """The lifted form of a call, computed as an engine does."""

    def difference(self, interpreter: Interpreter, rows: Rows, seed: int) -> str | None:
        """Fold rows in both ways, and return how states or outputs differ; None if they are equal.

        The bits of `seed` choose which rows are retracted.
        """


class LiftFormer(Protocol):
    """What the extension `lift` provides for laws."""

    def form(self, bound: BoundFunction, types: Sequence[pa.DataType]) -> tuple[LiftedForm | None, str]:
        """Return the lifted form of a call; or None and the reason."""


_LIFT: Final = Extension[LiftFormer]("lift")


class _Subject:
    """One call of the function, and how to fold rows with it.

    Attributes:
        inputs: The inputs of the laws, once they are drawn.
    """

    inputs: Sequence[Drawn] = ()

    def __init__(
        self, function: Function, literals: Mapping[str, Any], types: Sequence[pa.DataType] | None = None
    ) -> None:
        self.function = function
        self.types = argument_types(function, literals) if types is None else list(types)
        names = function.input_names
        # Errors show the names. A bundle of more arguments than names has the others numbered.
        self.names = tuple(
            chunk_names(names[at] if at < len(names) else f"argument {at + 1}" for at in range(len(self.types)))
        )
        self.schema = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), *zip(self.names, self.types, strict=True)])
        self.registry = Registry() if function.name in Registry() else Registry([function])
        self.calls: list[BoundCall] = bind_calls(
            self.registry, [Call(function.name, self.names, literals=literals)], self.schema
        )
        PROGRAMS.demand(self.calls[0].bound)
        former = _LIFT.find()
        self.lifted, self.unlifted_reason = (
            (None, MISSING) if former is None else former.form(self.calls[0].bound, self.types)
        )

    @cached_property
    def error_at_nulls(self) -> FoldflightError | None:
        """The error of a row whose arguments are all NULL; None if the function accepts it."""
        try:
            self.fold([[tuple(None for _ in self.types)]])
        except FoldflightError as error:
            return error
        return None

    def whole(self, inputs: Sequence[Drawn]) -> list[Any]:
        """Return the output of each input's rows, which are in one chunk."""
        return outputs_in(self.fold([rows for rows, _ in inputs]))

    def new(self) -> Fold:
        return Fold(self.calls, resources=_RESOURCES)

    def chunk(self, rows: Sequence[Any], slot: int = 0, kind: RowKind = RowKind.INSERT) -> pa.RecordBatch:
        return self._batch(rows, [slot] * len(rows), kind)

    def chunk_of(self, groups: Sequence[Rows], kind: RowKind = RowKind.INSERT) -> pa.RecordBatch:
        """Return a chunk of the rows of n groups, which are in the slots 0 to n - 1."""
        slots = [slot for slot, rows in enumerate(groups) for _ in rows]
        return self._batch([row for rows in groups for row in rows], slots, kind)

    def _batch(self, rows: Sequence[Any], slots: Sequence[int], kind: RowKind) -> pa.RecordBatch:
        columns = [pa.array(slots, pa.int32()), pa.array([int(kind)] * len(rows), pa.int8())]
        columns += [pa.array([row[index] for row in rows], type_) for index, type_ in enumerate(self.types)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def fold(self, *chunks: Sequence[Rows]) -> pa.RecordBatch:
        """Fold chunks, each with some rows of n groups, and return a state and an output for each group."""
        fold = self.new()
        for groups in chunks:
            fold.fold(self.chunk_of(groups))
        self.touch(fold, len(chunks[0]))
        return fold.collect()

    def alone(self, rows: Rows) -> pa.RecordBatch:
        """Fold the rows of one group with no other beside it, and return its output."""
        fold = self.new()
        fold.fold(self.chunk(rows))
        return fold.outputs(pa.array([0], pa.int32()))

    def state_of(self, rows: Sequence[Any], signs: Sequence[int]) -> Any:
        """Fold rows, of which those with the sign -1 are retracted, and return the state."""
        return self._fold_signed(rows, signs).collect(outputs=False).column("state_0")[0].as_py()

    def output_of(self, rows: Sequence[Any], signs: Sequence[int]) -> Any:
        """Fold rows as `state_of` does, and return the output."""
        return self._fold_signed(rows, signs).collect(states=False).column("output_0")[0].as_py()

    def _fold_signed(self, rows: Sequence[Any], signs: Sequence[int]) -> Fold:
        fold = self.new()
        for row, sign in zip(rows, signs, strict=True):
            fold.fold(self.chunk([row], kind=RowKind.INSERT if sign > 0 else RowKind.DELETE))
        if not rows:
            self.touch(fold, 1)
        return fold

    @staticmethod
    def touch(fold: Fold, count: int) -> None:
        """Mark the first slots as dirty, also those without rows: a NULL state changes no accumulator."""
        states = pa.nulls(count, fold.schema.field("state_0").type)
        fold.merge_states(pa.RecordBatch.from_arrays([pa.array(range(count), pa.int32()), states], ["slot", "state_0"]))

    def merge(self, *parts: pa.RecordBatch) -> list[Any]:
        """Return the output of each group whose states are in the parts."""
        fold = self.new()
        for part in parts:
            fold.merge_states(part)
        return outputs_in(fold.collect())


def outputs_in(batch: pa.RecordBatch) -> list[Any]:
    """Return the outputs of the groups in a batch of results."""
    outputs: list[Any] = batch.column("output_0").to_pylist()
    return outputs


def rows_of(types: Sequence[pa.DataType], known_values: Known = _NONE) -> st.SearchStrategy[Rows]:
    """Return a strategy for lists of rows. Values are small, so that their sums do not overflow."""
    return _rows(types, known_values, _values, rows_max=12)


def rows_with_nulls(types: Sequence[pa.DataType], known_values: Known = _NONE) -> st.SearchStrategy[Rows]:
    """Return a strategy for rows as `rows_of` makes them, in which values may be NULL."""
    return _rows(types, known_values, lambda type_: st.none() | _values(type_), rows_max=12)


def _rows(
    types: Sequence[pa.DataType],
    known_values: Known,
    of_type: Callable[[pa.DataType], st.SearchStrategy[Any]],
    rows_max: int,
) -> st.SearchStrategy[Rows]:
    columns = [
        st.sampled_from(known_values[place]) if place in known_values else of_type(type_)
        for place, type_ in enumerate(types)
    ]
    return st.lists(st.tuples(*columns), max_size=rows_max)


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
    if is_vector(type_):
        return _vectors(type_, _values(type_.value_type))
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


def _vectors(type_: pa.DataType, items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for vectors. Most items of a long one are equal, because each draw takes time."""
    size = type_.list_size
    return st.lists(items, min_size=1, max_size=min(size, 4)).map(lambda values: (values * size)[:size])


def hostile_rows(types: Sequence[pa.DataType], known_values: Known = _NONE) -> st.SearchStrategy[Rows]:
    """Return a strategy for lists of rows with NULL and the values at which engines differ from Python."""
    return _rows(types, known_values, lambda type_: st.none() | _hostile(type_), rows_max=6)


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
    if is_vector(type_):
        return _vectors(type_, _hostile(type_.value_type))
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


def _splits(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    heads, tails = _cut_in_two(inputs)
    parts = outputs_in(subject.fold(heads, tails))
    return _unless_all_same(
        subject.whole(inputs), parts, lambda group: f"two chunks, split after row {len(heads[group])}"
    )


def _cut_in_two(inputs: Sequence[Drawn]) -> tuple[list[Rows], list[Rows]]:
    places = [seed % (len(rows) + 1) for rows, seed in inputs]
    both = list(zip(inputs, places, strict=True))
    return [rows[:at] for (rows, _), at in both], [rows[at:] for (rows, _), at in both]


def _codec(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    heads, tails = _cut_in_two(inputs)
    fold = subject.new()
    fold.merge_states(subject.fold(heads))
    fold.fold(subject.chunk_of(tails))
    return _unless_all_same(
        subject.whole(inputs),
        outputs_in(fold.collect()),
        lambda group: f"state stored and loaded after row {len(heads[group])}",
    )


def _merge_parts(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    heads, tails = _cut_in_two(inputs)
    return _unless_all_same(
        subject.whole(inputs),
        subject.merge(subject.fold(heads), subject.fold(tails)),
        lambda group: f"the first {len(heads[group])} rows and the rest folded separately, then merged",
    )


def _merge_order(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    heads, tails = _cut_in_two(inputs)
    one, two = subject.fold(heads), subject.fold(tails)
    return _unless_all_same(
        subject.merge(one, two),
        subject.merge(two, one),
        lambda group: f"parts split after row {len(heads[group])}, merged in both orders",
    )


def _merge_grouping(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    thirds: list[list[Rows]] = [[], [], []]
    for rows, seed in inputs:
        third = max(1, seed % (len(rows) + 1))
        for part, groups in zip((rows[:third], rows[third : 2 * third], rows[2 * third :]), thirds, strict=True):
            groups.append(part)
    parts = [subject.fold(groups) for groups in thirds]
    fold = subject.new()
    fold.merge_states(parts[1])
    fold.merge_states(parts[2])
    right = subject.merge(parts[0], fold.collect())
    return _unless_all_same(subject.merge(*parts), right, lambda _: "(a + b) + c against a + (b + c)")


def _retract_inverse(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    remaining_rows = [[row for index, row in enumerate(rows) if seed >> (index % 16) & 1] for rows, seed in inputs]
    retracted_rows = [[row for index, row in enumerate(rows) if not seed >> (index % 16) & 1] for rows, seed in inputs]
    fold = subject.new()
    fold.fold(subject.chunk_of([rows for rows, _ in inputs]))
    fold.fold(subject.chunk_of([rows[::-1] for rows in retracted_rows], kind=RowKind.DELETE))
    subject.touch(fold, len(inputs))
    return _unless_all_same(
        outputs_in(subject.fold(remaining_rows)),
        outputs_in(fold.collect()),
        lambda group: f"retracted {retracted_rows[group]!r}",
    )


def _stored_views(subject: _Subject, rows: Rows, seed: int) -> str | None:
    """Fold rows while an engine keeps the entries of views, which are forgotten after some of the rows."""
    (whole,) = subject.whole([(rows, seed)])
    if not rows:
        return None

    def ask(question: pa.RecordBatch, read: Callable[[Sequence[pa.RecordBatch]], Any], *, are_retained: bool) -> Any:  # noqa: ARG001 - as in `AskEngine`
        return read(list(cached_views.resolve(question)))

    fold = Fold(subject.calls, Options(keeps_views=True), Resources(_SIGNER, ask=ask))
    cached_views = CachedViews(fold, page=2)
    for index, row in enumerate(rows):
        fold.fold(subject.chunk([row]))
        if seed >> (index % 16) & 1:
            cached_views.commit(pa.Table.from_batches([fold.changed_states()]))
    (output,) = outputs_in(fold.collect())
    return _unless_same(
        whole,
        output,
        "entries of views were stored after some rows, and read again in another order; is a value changed in place "
        "and not put again, or does the result depend on the order of entries?",
    )


def _groups_apart(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    fold = subject.new()
    all_rows = [rows for rows, _ in inputs]
    others, _ = _cut_in_two(inputs)
    fold.fold(subject.chunk_of(all_rows))
    fold.fold(subject.chunk_of([*([] for _ in inputs), *others]))
    slots = pa.array(range(2 * len(inputs)), pa.int32())
    fold.outputs(slots.slice(len(inputs)))
    beside = outputs_in(fold.outputs(slots.slice(0, len(inputs))))
    alone = [outputs_in(subject.alone(rows))[0] for rows in all_rows]
    return _unless_all_same(
        alone,
        beside,
        lambda _: (
            "another group was folded at the same time; do accumulators share an object, such as a list in the body of "
            "their class?"
        ),
    )


def _repeatable(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    fold = subject.new()
    fold.fold(subject.chunk_of([rows for rows, _ in inputs]))
    first, second = fold.values_twice(len(inputs))
    return _unless_all_same(first, second, lambda _: "get_value was called twice; does it change the accumulator?")


def _compare_vectorised(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    return _both_forms(subject, inputs, "the scalar methods, then the vectorised ones")


def _compare_bundled(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    """Compare `fold_bundle` with the other methods or, without these, with its own result row by row."""
    how = "the same rows one by one, then in bundles"
    each = (_values_after_rows(subject, rows, seed, how) for rows, seed in inputs)
    return _both_forms(subject, inputs, how) or next(
        (difference for difference in each if difference is not None), None
    )


def _values_after_rows(subject: _Subject, rows: Rows, seed: int, how: str) -> str | None:
    """Compare the values after each row of two groups, where some rows are retracted again."""
    if not rows:
        return None
    batch = concat_batches([subject.chunk(rows, slot=0), subject.chunk(rows, slot=1), subject.chunk(rows, slot=0)])
    if subject.function.capabilities.retract:
        batch = concat_batches([batch, subject.chunk(rows[: seed % (len(rows) + 1)], slot=1, kind=RowKind.DELETE)])
    one, two = (
        Fold(calls, Options(row_outputs=True), Resources(_SIGNER)).fold_each(batch).column(0).to_pylist()
        for calls in (_scalar_calls(subject), subject.calls)
    )
    return _unless_same(one, two, f"{how}, the values after each row")


def _scalar_calls(subject: _Subject) -> list[BoundCall]:
    return [BoundCall(call.call, replace(call.bound, function=_scalar(call.bound.function))) for call in subject.calls]


def _both_forms(subject: _Subject, inputs: Sequence[Drawn], how: str) -> str | None:
    """Accumulate and retract the rows of each input in two slots with each form, and merge the states."""
    one, two = (_results_of(subject, calls, inputs) for calls in (_scalar_calls(subject), subject.calls))
    pairs = zip(one, two, strict=True)
    return next((difference for pair in pairs if (difference := _unless_same(*pair, how)) is not None), None)


def _results_of(subject: _Subject, calls: list[BoundCall], inputs: Sequence[Drawn]) -> list[dict[str, Any]]:
    """Return the states and outputs after each step of `_both_forms`."""
    results = []
    fold, merging_fold = (Fold(calls, resources=_RESOURCES) for _ in range(2))
    all_rows = [rows for rows, _ in inputs]
    some = [rows[: seed % (len(rows) + 1)] for rows, seed in inputs]
    for parts, kind in ((all_rows, RowKind.INSERT), (some, RowKind.DELETE), (all_rows, RowKind.INSERT)):
        if kind is RowKind.INSERT or subject.function.capabilities.retract:
            fold.fold(subject.chunk_of([group for rows in parts for group in (rows, [])], kind))
            fold.fold(subject.chunk_of([group for rows in parts for group in ([], rows[1:])], kind))
        changed_states = fold.collect()
        results += changed_states.to_pylist()
        if subject.function.capabilities.merge:
            merging_fold.merge_states(changed_states)
            results += merging_fold.collect().to_pylist()
    return results


def _compare_compiled(subject: _Subject, inputs: Sequence[Drawn]) -> str | None:
    """Compare states, results and errors of the interpreter and of compiled code, bit for bit."""
    one = _steps(subject, _scalar_calls(subject), Resources(_SIGNER), inputs)
    two = _steps(subject, subject.calls, Resources(_SIGNER, accelerator=PROGRAMS_AT_ONCE), inputs)
    for (step, expected), (_, compiled_outcome) in zip(one, two, strict=True):
        if expected != compiled_outcome:
            return f"{step}: interpreted {expected}, compiled {compiled_outcome}"
        if len(inputs) > 1 and isinstance(expected, _ErrorText):
            return f"{step}: raised {expected} for several inputs at once, which tells nothing of the others"
    return None


class _ErrorText(str):
    """The text of an error."""

    __slots__ = ()


def _steps(
    subject: _Subject, calls: list[BoundCall], resources: Resources, inputs: Sequence[Drawn]
) -> Iterator[tuple[str, str]]:
    """Yield the operations on rows, each with its outcome as text.

    All rows of an input are in a slot, those without NULL in the next one, and each alone in a slot of its own, so that
    an error in one slot does not hide the others.
    """
    parts, retracted_parts = [], []
    for rows, seed in inputs:
        own = [rows, [row for row in rows if None not in row], *([row] for row in rows)]
        parts += own
        retracted_parts += [part[: seed % (len(part) + 1)] for part in own]
    batch = subject.chunk_of(parts)
    options = Options(isolate_errors=True)
    fold, merging_fold = (Fold(calls, options, resources) for _ in range(2))
    bound = subject.calls[0].bound
    unordered_fields = PROGRAMS_AT_ONCE.unordered_fields(bound)
    codec = (
        state_codec(bound, bound.instantiate(), _SIGNER) if subject.function.capabilities.codec == "pickle" else None
    )
    yield "accumulated", _outcome_of(lambda: fold.fold(batch))
    yield "states and results", _outcome_of(fold.collect, unordered_fields, codec)
    if subject.function.capabilities.retract:
        retracted_chunk = subject.chunk_of(retracted_parts, RowKind.DELETE)
        yield "some rows retracted", _outcome_of(lambda: fold.fold(retracted_chunk))
        yield (
            "states and results after that",
            _outcome_of(fold.collect, unordered_fields, codec),
        )
    states = Fold(calls, options, resources)
    states.fold(batch)
    stored_states = states.collect()
    merging_fold.merge_states(stored_states)
    if subject.function.capabilities.merge:
        yield "the states merged twice", _outcome_of(lambda: merging_fold.merge_states(stored_states))
    yield (
        "states and results of the merged states",
        _outcome_of(merging_fold.collect, unordered_fields, codec),
    )
    for rows, seed in inputs:
        without_nulls = [row for row in rows if None not in row]
        chunk = subject.chunk(without_nulls) if seed % 2 else subject.chunk(rows)
        yield "the results after each row", _outcome_of(partial(_after_each_row, calls, resources, chunk))


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


def _outcome_of(
    run: Callable[[], pa.RecordBatch | None],
    unordered_fields: frozenset[str] = frozenset(),
    codec: StateCodec | None = None,
) -> str:
    """Return a result or error as text, in which all values have all digits and zeros their signs.

    Args:
        run: Makes it.
        unordered_fields: The attributes of states that are sets, or dicts of them, whose order only Python knows;
            `value` is a state.
        codec: Reads pickled states. What they hold is compared: their bytes tell which equal texts are one object.
    """
    try:
        results = run()
    except FoldflightError as error:
        return _ErrorText(f"{error.code}: {error.message} {error.slot} {error.row}")
    if results is None:
        return ""
    rows = results.to_pylist()
    for row in rows:
        state = row.get("state_0")
        if codec is not None and isinstance(state, bytes):
            (accumulator,) = codec.decode(pa.array([state], pa.binary()))
            row["state_0"] = _write_value(accumulator, {})
    for row in rows if unordered_fields else ():
        state = row["state_0"]
        if isinstance(state, list):
            row["state_0"] = _sort_sets(state)
        for name in unordered_fields.intersection(state) if isinstance(state, dict) else ():
            state[name] = _sort_sets(state[name])
    return repr(rows)


def _sort_sets(items: list[Any]) -> list[Any]:
    """Return the items of a set in a fixed order, or the entries of a dict whose values are sets."""
    if all(isinstance(each, tuple) for each in items):
        return [(key, _sort_sets(value)) for key, value in items]
    return sorted(items, key=repr)


def _write_value(value: Any, known_ids: dict[int, Any]) -> Any:
    """Return what tells two accumulators apart: types and values, and which objects that can change are one object.

    Args:
        value: The accumulator, or a part of it.
        known_ids: The parts that can change, by identity. They are kept, so that no other object gets their identity.
    """
    if isinstance(value, (str, bytes, int, float)) or value is None:
        return type(value).__name__, repr(value)
    if id(value) in known_ids:
        return "the same object", list(known_ids).index(id(value))
    if not isinstance(value, (tuple, frozenset)):
        known_ids[id(value)] = value
    parts: list[Any] = [type(value).__qualname__]
    if isinstance(value, (set, frozenset)):
        parts += sorted((_write_value(each, known_ids) for each in value), key=repr)
    elif isinstance(value, dict):
        parts += [(_write_value(key, known_ids), _write_value(each, known_ids)) for key, each in value.items()]
        parts.append(repr(getattr(value, "default_factory", None)))
    elif isinstance(value, (list, tuple, deque)):
        parts += [_write_value(each, known_ids) for each in value]
        parts.append(getattr(value, "maxlen", None))
    elif not hasattr(value, "__dict__"):
        known_ids.pop(id(value), None)  # a date, a decimal and the like
        parts.append(repr(value))
    if hasattr(value, "__dict__"):
        parts.append(_write_value(vars(value), known_ids))
    return tuple(parts)


def _scalar(function: Function) -> Function:
    return replace(function, vectorised=False, bundled=False, compile=False)


def _unless_same(expected: Any, actual: Any, how: str) -> str | None:
    return None if _same(expected, actual) else f"{how}: {expected!r} became {actual!r}"


def _unless_all_same(expected: Sequence[Any], actual: Sequence[Any], how: Callable[[int], str]) -> str | None:
    """Compare the outputs of n groups, and return the first difference; `how` tells how a group was made."""
    pairs = enumerate(zip(expected, actual, strict=True))
    return next((_unless_same(one, two, how(group)) for group, (one, two) in pairs if not _same(one, two)), None)


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


def _compare_lifted(subject: _Subject, rows: Rows, seed: int) -> str | None:
    """Compare the interpreter's state and output with the lifted form's; some rows are retracted."""
    assert subject.lifted is not None
    return subject.lifted.difference(subject, rows, seed)


def _needs_nulls(subject: _Subject) -> str | None:
    """Return why the function takes no NULLs. That breaks no law: its author may know that there are none."""
    error = subject.error_at_nulls
    return (
        None
        if error is None
        else f"a query fails at NULLs, which are None in Python ({error.message}): {_HANDLE_NULLS}"
    )


def _needs_effect(subject: _Subject) -> str | None:
    """Return what a function may lack whose result no row changes. That breaks no law: it may look for rare values."""
    try:
        without_rows, *outputs = subject.whole([([], 0), *subject.inputs])
    except FoldflightError:
        return None  # other laws tell the error with the fewest rows
    if not any(rows for rows, _ in subject.inputs) or not all(_same(without_rows, each) for each in outputs):
        return None
    return f"no generated row changes the result, {without_rows!r}: {_RETURN_SOMETHING}"


def _always(_subject: _Subject, _inputs: Sequence[Drawn]) -> None:
    """Hold for every function to which the law applies."""


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
    return None if subject.lifted is not None else f"it is not lifted: {subject.unlifted_reason}"


def _needs_compiled(subject: _Subject) -> str | None:
    fold = Fold(subject.calls, resources=Resources(_SIGNER, accelerator=PROGRAMS_AT_ONCE))
    try:
        mode = fold.modes[0]
    finally:
        fold.close()
    if mode is Mode.COMPILED:
        return None
    reason = PROGRAMS_AT_ONCE.folding(subject.function).reason
    return f"it is {mode}" + (f": {reason}" if reason else "")


def _tell_interpreted(subject: _Subject) -> str:
    """Return which methods of a compiled function are interpreted, and why; mostly empty."""
    return PROGRAMS_AT_ONCE.warm(subject.function).reason


LAWS: tuple[Law[_Subject], ...] = (
    Law("rows of NULLs are taken", _always, _needs_nulls),
    Law(EFFECT, _always, _needs_effect),
    Law("any split of the rows", _splits),
    Law("state stored and loaded", _codec),
    Law("merge of parts", _merge_parts, _needs_merge),
    Law("merge in any order", _merge_order, _needs_unordered_merge),
    Law("merge in any grouping", _merge_grouping, _needs_merge),
    Law("retract undoes accumulate", _retract_inverse, _needs_retract),
    Law("groups are independent", _groups_apart),
    Law("get_value changes nothing", _repeatable),
    Law("vectorised methods agree", _compare_vectorised, _needs_vectorised),
    Law("the bundled form agrees", _compare_bundled, _needs_bundled),
    Law("the lifted form agrees", one_by_one(_compare_lifted), _needs_lift, hostile=True),
    Law("the compiled form agrees", _compare_compiled, _needs_compiled, hostile=True, tells=_tell_interpreted),
    Law("entries of views stored and read", one_by_one(_stored_views), _needs_views),
)


class _Inputs:
    """The rows that every law of a function is tried on.

    Hypothesis takes longer to draw rows than most laws take to try them. So it draws values of each type, and the
    inputs are mixed from these. It draws rows only for a broken law, to find minimal ones.

    Args:
        draw: Makes the strategy for rows of some types.
        types: The types of the arguments.
        known_values: The values of some arguments.
        examples: The number of inputs.
    """

    def __init__(self, draw: _Draw, types: Sequence[pa.DataType], known_values: Known, *, examples: int) -> None:
        self._strategy = st.tuples(draw(types, known_values), st.integers(0, 2**16 - 1))
        self._examples = examples
        columns_by_type = {type_: _draw_column(draw, (type_,), examples) for type_ in types}
        rows_max = max(map(len, columns_by_type[types[0]] if types else _draw_column(draw, (), examples)))
        values = {
            type_: [value for column in columns for (value,) in column] for type_, columns in columns_by_type.items()
        }
        self.all = _mix(
            [known_values.get(place, values[type_]) for place, type_ in enumerate(types)], rows_max, examples
        )
        self.broken: list[Drawn] = []  # the minimal input of each error so far

    def first(self, condition: Callable[[Drawn], bool]) -> Drawn:
        """Return a minimal input that meets a condition. Raises NoSuchExample, or Flaky."""
        return _first(self._strategy, condition, self._examples)


@lru_cache(maxsize=64)
def _draw_column(draw: _Draw, types: tuple[pa.DataType, ...], examples: int) -> Sequence[Rows]:
    """Return lists of rows of one type, or of none: as many as there are inputs, or 100 for fewer.

    A few are drawn at a time, which is faster. The first are empty.
    """
    lists: list[Rows] = []

    def keep(examples: list[Rows]) -> bool:
        lists.extend(examples)
        return False

    with contextlib.suppress(NoSuchExample):
        some = st.lists(draw(types, _NONE), min_size=_AT_A_TIME, max_size=_AT_A_TIME)
        _first(some, keep, max(examples, EXAMPLES) // _AT_A_TIME)
    return lists


def _mix(columns: Sequence[Sequence[Any]], rows_max: int, examples: int) -> Sequence[Drawn]:
    """Return inputs of 0 to `rows_max` rows, given the values of each column.

    An input has few different values, which columns with the same values share. So rows, and values in a row, are
    equal as often as they differ.
    """
    rng = random.Random(0)  # noqa: S311 - data, not secrets
    inputs: list[Drawn] = []
    for number in range(examples):
        count = number % (rows_max + 1)
        few = {id(values): rng.choices(values, k=rng.randint(1, max(count, 1))) for values in columns}
        rows = [tuple(rng.choice(few[id(values)]) for values in columns) for _ in range(count)]
        inputs.append((rows, rng.randrange(1 << 16)))
    return inputs


def _first(strategy: st.SearchStrategy[_S], condition: Callable[[_S], bool], examples: int) -> _S:
    return find(
        strategy,
        condition,
        settings=settings(
            max_examples=examples,
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
    result = _try_law(law.name, partial(law.holds, subject), inputs, of_nulls="" if skips else _SKIP_NULLS)
    return replace(result, detail=law.tells(subject)) if result.passed else result


def _try_law(name: str, holds: Callable[[Sequence[Drawn]], str | None], inputs: _Inputs, *, of_nulls: str) -> LawResult:
    """Try a law on all inputs, and look for a minimal one if it is broken; `of_nulls` is the remedy if it has NULLs.

    At first, one fold has all inputs, each as a group of its own. Only if the law is broken there is each input tried
    alone. If none breaks the law alone, the groups of the function are not independent, which is a law of its own.
    """
    if _outcome(holds, inputs.all)[0] is None:
        return LawResult(name, True)

    def broken_by(example: Drawn) -> tuple[str | None, str]:
        return _outcome(holds, [example])

    # The error of another law breaks this one, too, in most cases, and its rows are minimal already.
    known_example = next((example for example in inputs.broken if broken_by(example)[1]), None)
    broken_example = known_example or next(
        (example for example in inputs.all if broken_by(example)[0] is not None), None
    )
    if broken_example is None:
        return LawResult(name, True)
    if known_example is None:
        try:
            broken_example = inputs.first(lambda example: broken_by(example)[0] is not None)
        except NoSuchExample:  # The search draws other inputs, so the one that broke the law is reduced.
            pass
        except Flaky:
            return LawResult(name, False, _FLAKY)
        broken_example = _without_rows(broken_example, lambda example: broken_by(example)[0] is not None)
    difference, cause = broken_by(broken_example)
    if cause:
        inputs.broken.append(broken_example)
    rows, _ = broken_example
    has_nulls = any(value is None for row in rows for value in row)
    remedy = of_nulls if cause and has_nulls else ""
    return LawResult(name, False, f"rows {rows!r}{remedy}; {difference or _FLAKY}", cause)


def _without_rows(example: Drawn, condition: Callable[[Drawn], bool]) -> Drawn:
    """Return an input without the rows that a condition does not need. Fewer rows may need another seed."""
    rows, seed = example
    for place in reversed(range(len(rows))):
        fewer = rows[:place] + rows[place + 1 :]
        other_seed = next((each for each in (seed, *range(_SEEDS)) if condition((fewer, each))), None)
        if other_seed is not None:
            rows, seed = fewer, other_seed
    return rows, seed


def _outcome(holds: Callable[[Sequence[Drawn]], str | None], inputs: Sequence[Drawn]) -> tuple[str | None, str]:
    """Return what broke the law, or None, and its cause if that is an error."""
    try:
        return holds(inputs), ""
    except FoldflightError as error:
        error.slot = None  # the rows tell the place; only laws know slots
        error.message = error.message.removesuffix(CLASS_CHANGED)  # it wrote all states itself
        return str(error), f"{error.code}: {error.message}"
