"""Dialects: the methods by which other engines call an aggregate class, and how each becomes a function of foldflight.

A dialect lists the methods that its engine calls, by foldflight's verb, and has a form that creates the verbs of an
instance (`AdaptedForm`). The author's class is not changed. `retract` and `migrate` may be added to a class of any
dialect, for example in a subclass; `retract` takes a row as the method that adds one does.

The classes of an engine are recognised by the engine's base class, by its module and name, so the engine is not
imported. A class without it is recognised by its methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions import flink
from foldflight.functions.author.spec import Verbs
from foldflight.functions.types.shape import Nullable, Shape
from foldflight.functions.types.values import CastError

__all__ = [
    "DIALECTS",
    "ENGINES",
    "AdaptedForm",
    "Aggregator",
    "CombineFn",
    "Dialect",
    "Handled",
    "HandledShape",
    "Method",
    "Shipped",
    "dialect_of",
    "written_by_author",
]

# How a method takes the arguments of a row: each as a parameter, all as one tuple, or one argument as itself and
# several as one tuple.
RowForm = Literal["each", "tuple", "element"]
_ROWS: Final[dict[RowForm | None, str]] = {None: "", "each": "*arguments", "tuple": "value", "element": "element"}


@dataclass(frozen=True)
class Method:
    """A method that an engine calls.

    Args:
        name: Its name.
        before: Names of its parameters after `self`, without those of a row.
        row: How it takes the arguments of a row; None if it takes none.
        required: Whether a class must define it.
        is_property: Whether it is a property.
    """

    name: str
    before: tuple[str, ...] = ()
    row: RowForm | None = None
    required: bool = False
    is_property: bool = False

    def shown(self) -> str:
        """Return the method as an author writes it."""
        parameters = ", ".join(filter(None, ("self", *self.before, _ROWS[self.row])))
        return f"{'@property ' if self.is_property else ''}{self.name}({parameters})"


@dataclass(frozen=True)
class Dialect:
    """The conventions of another engine for aggregate classes.

    Args:
        name: Its name in `udaf(adapt=...)`.
        what: What the engine calls such a class, for messages.
        methods: The methods that the engine calls, by foldflight's verb.
        marks: Names of attributes that foldflight's own classes and other dialects do not have.
        base: Module and name of the engine's base class; None if it has none.
        stand_in: The class that replaces the base class in shipped code.
        declaring: Attributes of a class that tell its engine about types. They are removed from shipped code.
        returns_accumulator: Whether the engine uses what the methods that change an accumulator return.
    """

    name: str
    what: str
    methods: Mapping[str, Method]
    marks: tuple[str, ...]
    returns_accumulator: bool
    base: tuple[str, str] | None = None
    stand_in: type | None = None
    declaring: tuple[str, ...] = ()

    def engine_part(self, cls: type) -> tuple[type, ...]:
        """Return the classes from which a class inherits what belongs to the engine: its base class and those above."""
        for place, each in enumerate(cls.__mro__):
            if each is self.stand_in or (each.__module__, each.__qualname__) == self.base:
                return cls.__mro__[place:]
        return ()

    def method(self, cls: type, verb: str) -> Any:
        """Return the author's method for a verb; None if the class has none, or only that of the engine's base."""
        method = self.methods.get(verb)
        if method is None or getattr(cls, method.name, None) is None:
            return None
        owner = next(each for each in cls.__mro__ if method.name in vars(each))
        return None if owner in self.engine_part(cls) else getattr(cls, method.name)

    def missing(self, cls: type) -> list[Method]:
        """Return the required methods that a class does not define."""
        return [method for verb, method in self.methods.items() if method.required and self.method(cls, verb) is None]

    def score(self, cls: type) -> int:
        """Return how many of the dialect's methods a class defines; 0 if it has no mark of the dialect."""
        if not any(getattr(cls, mark, None) is not None for mark in self.marks):
            return 0
        return sum(self.method(cls, verb) is not None for verb in self.methods)


class CombineFn:
    """Replaces Beam's base class in shipped code."""

    def setup(self, *arguments: Any, **named: Any) -> None:
        """Do nothing, as in Beam."""

    def teardown(self, *arguments: Any, **named: Any) -> None:
        """Do nothing, as in Beam."""

    def compact(self, accumulator: Any, *_: Any, **__: Any) -> Any:
        """Return the accumulator, as in Beam."""
        return accumulator


class Aggregator:
    """Replaces the base class of Spark's aggregators in shipped code."""


class Handled:
    """An accumulator of the Snowflake dialect: the handler of a group, or the state from which it is made when needed.

    Pickled states contain the name `foldflight.functions.dialects.Handled`, so it must not be renamed.
    """

    __slots__ = ("handler", "state")

    def __init__(self, handler: Any, state: Any = None) -> None:
        self.handler = handler
        self.state = state

    def aggregate_state(self) -> Any:
        """Return the state, which the engine sends from node to node."""
        return self.state if self.handler is None else self.handler.aggregate_state

    def __reduce__(self) -> Any:
        return Handled, (None, self.aggregate_state())


class HandledShape(Shape):
    """Accumulators of the Snowflake dialect, as their states."""

    def __init__(self, state: Shape) -> None:
        self.state = state
        self.arrow = state.arrow

    def to_arrow(self, values: Any) -> pa.Array:
        states = [value.aggregate_state() for value in values]
        missing = next((index for index, state in enumerate(states) if state is None), None)
        if missing is not None and not isinstance(self.state, Nullable):
            wrong = "aggregate_state returned None, which its annotation does not have; annotate it as `... | None`"
            raise CastError(missing, "RESULT_TYPE", wrong)
        return self.state.to_arrow(states)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [Handled(None, state) for state in self.state.from_arrow(array)]


class AdaptedForm:
    """Creates the verbs of a class of a dialect.

    Args:
        cls: The author's class.
        dialect: The name of the dialect.
    """

    def __init__(self, cls: type, dialect: str) -> None:
        self.cls = cls
        self.dialect = dialect

    def __call__(self, literals: Mapping[str, Any]) -> Verbs:
        methods = DIALECTS[self.dialect].methods
        written = {verb for verb in methods if DIALECTS[self.dialect].method(self.cls, verb) is not None}
        instance = self.cls(**literals)
        given = {
            verb: None if verb not in written or method.is_property else getattr(instance, method.name)
            for verb, method in methods.items()
        }
        verbs = _FORMS[self.dialect](SimpleNamespace(**given), lambda: self.cls(**literals))
        needed = written | {"create_accumulator", "accumulate", "get_value"}
        present = {verb: call for verb, call in verbs.items() if verb in needed}
        migrate = getattr(instance, "migrate", None)
        return Verbs(migrate=_of_states(migrate) if migrate and self.dialect == "snowflake" else migrate, **present)


def _of_states(migrate: Callable[[str, Any], Any]) -> Callable[[str, Any], Handled]:
    """Return a `migrate` for accumulators of one that takes and returns states of handlers."""

    def migrated(version: str, state: Any) -> Handled:
        return Handled(None, migrate(version, state.aggregate_state() if isinstance(state, Handled) else state))

    return migrated


def _in_place(call: Callable[..., Any]) -> Callable[..., None]:
    """Return a call whose result is ignored, as the engine ignores it."""

    def change(accumulator: Any, *values: Any) -> None:
        call(accumulator, *values)

    return change


def _flink(given: Any, _: Callable[[], Any]) -> dict[str, Any]:
    return {
        "create_accumulator": lambda: flink.without_pyflink(given.create_accumulator()),
        "accumulate": _in_place(given.accumulate),
        "retract": _in_place(given.retract),
        "merge": _in_place(lambda accumulator, other: given.merge(accumulator, [other])),
        "get_value": lambda accumulator: flink.plain_result(given.get_value(accumulator)),
        "open": lambda context: given.open(flink.FlinkContext(context)),
        "close": given.close,
    }


def _arrow_udf(given: Any, _: Callable[[], Any]) -> dict[str, Any]:
    def returning(call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call whose result is the state, except that None keeps a state that can change in place."""

        def change(state: Any, *values: Any) -> Any:
            returned = call(state, *values)
            if returned is None and (isinstance(state, (list, dict, set, bytearray)) or hasattr(state, "__dict__")):
                return state
            return returned

        return change

    return {
        "create_accumulator": given.create_accumulator,
        "accumulate": returning(given.accumulate),
        "retract": returning(given.retract),
        "merge": returning(given.merge),
        "get_value": given.get_value or (lambda state: state),  # without `finish`, the state is the result
    }


def _spark(given: Any, _: Callable[[], Any]) -> dict[str, Any]:
    return {
        "create_accumulator": given.create_accumulator,
        "accumulate": lambda buffer, *values: given.accumulate(buffer, values),
        "retract": lambda buffer, *values: given.retract(buffer, values),
        "merge": given.merge,
        "get_value": given.get_value,
    }


def _beam(given: Any, _: Callable[[], Any]) -> dict[str, Any]:
    def taking(call: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        return lambda accumulator, *values: call(accumulator, values[0] if len(values) == 1 else values)

    return {
        "create_accumulator": given.create_accumulator,
        "accumulate": taking(given.accumulate),
        "retract": taking(given.retract),
        "merge": lambda accumulator, other: given.merge([accumulator, other]),
        "get_value": given.get_value,
        "open": lambda _: given.open(),
        "close": given.close,
    }


def _snowflake(_: Any, handler: Callable[[], Any]) -> dict[str, Any]:
    def of(accumulator: Handled) -> Any:
        """Return the handler of an accumulator. It is restored as the engine does on the node that gets a state."""
        if accumulator.handler is None:
            restored = handler()
            restored.merge(accumulator.state)
            accumulator.handler, accumulator.state = restored, None
        return accumulator.handler

    return {
        "create_accumulator": lambda: Handled(handler()),
        "accumulate": _in_place(lambda accumulator, *values: of(accumulator).accumulate(*values)),
        "retract": _in_place(lambda accumulator, *values: of(accumulator).retract(*values)),
        "merge": _in_place(lambda accumulator, other: of(accumulator).merge(other.aggregate_state())),
        "get_value": lambda accumulator: of(accumulator).finish(),
    }


_FORMS: Final = {
    "flink": _flink,
    "arrow-udf": _arrow_udf,
    "spark-aggregator": _spark,
    "snowflake": _snowflake,
    "beam": _beam,
}
DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "flink",
            "AggregateFunction of PyFlink",
            {
                "create_accumulator": Method("create_accumulator", required=True),
                "accumulate": Method("accumulate", ("accumulator",), "each", required=True),
                "retract": Method("retract", ("accumulator",), "each"),
                "merge": Method("merge", ("accumulator", "accumulators")),
                "get_value": Method("get_value", ("accumulator",), required=True),
                "open": Method("open", ("function_context",)),
                "close": Method("close"),
            },
            marks=("get_result_type", "get_accumulator_type"),
            returns_accumulator=False,
            base=("pyflink.table.udf", "AggregateFunction"),
            stand_in=flink.AggregateFunction,
            declaring=("get_result_type", "get_accumulator_type"),
        ),
        Dialect(
            "arrow-udf",
            "aggregate of arrow-udf",
            {
                "create_accumulator": Method("create_state", required=True),
                "accumulate": Method("accumulate", ("state",), "each", required=True),
                "retract": Method("retract", ("state",), "each"),
                "merge": Method("merge", ("state", "other")),
                "get_value": Method("finish", ("state",)),
            },
            marks=("create_state",),
            returns_accumulator=True,
        ),
        Dialect(
            "spark-aggregator",
            "Aggregator of Spark",
            {
                "create_accumulator": Method("zero", required=True),
                "accumulate": Method("reduce", ("buffer",), "tuple", required=True),
                "retract": Method("retract", ("buffer",), "tuple"),
                "merge": Method("merge", ("buffer1", "buffer2"), required=True),
                "get_value": Method("finish", ("buffer",), required=True),
            },
            marks=("zero", "reduce"),
            returns_accumulator=True,
            base=("pyspark.sql.aggregator", "Aggregator"),
            stand_in=Aggregator,
            declaring=("bufferSchema", "outputType"),
        ),
        Dialect(
            "snowflake",
            "handler of Snowflake or Doris",
            {
                "accumulate": Method("accumulate", (), "each", required=True),
                "retract": Method("retract", (), "each"),
                "merge": Method("merge", ("other_state",), required=True),
                "get_value": Method("finish", required=True),
                "serialize": Method("aggregate_state", required=True, is_property=True),
            },
            marks=("aggregate_state",),
            returns_accumulator=False,
        ),
        Dialect(
            "beam",
            "CombineFn of Beam",
            {
                "create_accumulator": Method("create_accumulator", required=True),
                "accumulate": Method("add_input", ("accumulator",), "element", required=True),
                "retract": Method("retract", ("accumulator",), "element"),
                "merge": Method("merge_accumulators", ("accumulators",), required=True),
                "get_value": Method("extract_output", ("accumulator",), required=True),
                "open": Method("setup"),
                "close": Method("teardown"),
            },
            marks=("add_input", "merge_accumulators", "extract_output"),
            returns_accumulator=True,
            base=("apache_beam.transforms.core", "CombineFn"),
            stand_in=CombineFn,
            declaring=("_type_hints", "default_type_hints", "get_accumulator_coder", "display_data"),
        ),
    )
}
# Classes of engines other than base classes that an accumulator is made of.
_PARTS: Final[Mapping[tuple[str, str], type]] = {
    ("pyflink.common.types", "Row"): flink.Row,
    ("pyflink.table.data_view", "ListView"): flink.ListView,
    ("pyflink.table.data_view", "MapView"): flink.MapView,
}
# The packages of the engines. They are never shipped.
ENGINES: Final = frozenset(each.base[0].partition(".")[0] for each in DIALECTS.values() if each.base is not None)
_OWN_VERBS: Final = ("create_accumulator", "accumulate", "retract", "merge", "get_value")


def dialect_of(cls: type, said: str | None) -> Dialect | None:
    """Return the dialect of a class: the one that is said, or the one that is found; None for foldflight's own form.

    Raises:
        RejectedError: SIGNATURE, for an unknown dialect, and for a class that may be of two.
    """
    if said is not None:
        if said not in DIALECTS:
            names = ", ".join(map(repr, DIALECTS))
            raise RejectedError("SIGNATURE", f"{cls.__name__}: there is no dialect {said!r}; adapt takes {names}")
        return DIALECTS[said]
    for dialect in DIALECTS.values():
        if dialect.engine_part(cls):
            return dialect
    own = sum(getattr(cls, verb, None) is not None for verb in _OWN_VERBS)
    if all(getattr(cls, verb, None) is not None for verb in ("accumulate", "get_value")):
        return None
    scores = {name: score for name, dialect in DIALECTS.items() if (score := dialect.score(cls)) > own}
    best = [name for name, score in scores.items() if score == max(scores.values())]
    if len(best) > 1:
        shown = " and ".join(best)
        raise RejectedError(
            "SIGNATURE", f"{cls.__name__} has methods of {shown}; say which it is, as in @udaf(adapt={best[0]!r})"
        )
    return DIALECTS[best[0]] if best else None


def written_by_author(cls: type, dialect: str) -> tuple[type, ...]:
    """Return a class of a dialect and its bases, without those of the engine."""
    engine = DIALECTS[dialect].engine_part(cls)
    return tuple(each for each in cls.__mro__ if each not in engine and each is not object)


class Shipped:
    """What shipped code of adapted classes has in place of the engines' own classes, so that no engine is needed there.

    Args:
        classes: The adapted classes by the name of their dialect.
    """

    def __init__(self, classes: Mapping[type, str]) -> None:
        self._replaced: dict[tuple[str, str], type] = dict(_PARTS) if "flink" in classes.values() else {}
        self._declaring: dict[type, tuple[str, ...]] = {}
        for cls, name in classes.items():
            dialect = DIALECTS[name]
            if dialect.base is not None and dialect.stand_in is not None:
                self._replaced[dialect.base] = dialect.stand_in
            self._declaring.update(dict.fromkeys(written_by_author(cls, name), dialect.declaring))

    def replacement(self, value: Any) -> type | None:
        """Return the class that replaces an engine's class; None for all other objects."""
        if not inspect.isclass(value):
            return None
        return self._replaced.get((value.__module__, value.__qualname__))

    def removed(self, cls: type) -> tuple[str, ...]:
        """Return the names of the attributes that shipped code of a class does not have."""
        return self._declaring.get(cls, ())
