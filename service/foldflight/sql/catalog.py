"""The functions that the SQL of a session knows, and the UDFs that stand for them in Spark."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import SparkSession

from foldflight.client import Aggregate, FunctionHandle, Functions, connect
from foldflight.client.connect import EMBEDDED
from foldflight.errors import RejectedError
from foldflight.functions import Call, Function, Order, Registry, parse_type
from foldflight.spark.columns import text_of
from foldflight.sql.calls import AGGREGATES
from foldflight.sql.lists import ListFold
from foldflight.sql.text import Span, SqlError, Text

__all__ = ["Catalog", "Entry", "catalog_of"]

_PREFIX: Final = "foldflight__"
_STRUCT: Final = "named_struct"


@dataclass(frozen=True)
class Entry:
    """One function of a catalogue.

    Args:
        name: Its name in SQL, in lower case.
        handle: The function.
        types: The types of its arguments; None if they depend on the call.
        where: Where it is folded, for SHOW AGGREGATES.
        statement: The CREATE AGGREGATE statement that made it; empty for a registered one.
        append_only: Whether rows cannot be retracted.
    """

    name: str
    handle: FunctionHandle
    types: tuple[pa.DataType, ...] | None
    where: str
    statement: str = ""
    append_only: bool = False

    @classmethod
    def of(cls, name: str, handle: FunctionHandle, where: str) -> Entry:
        """Return the entry for a function with the types that its author declared."""
        declared = handle.info.input_types
        types = None if declared is None else tuple(map(parse_type, declared))
        return cls(name.lower(), handle, types, where, append_only=not handle.info.retract)


@dataclass(frozen=True)
class _Written:
    """How a UDF's call is written by users: with DISTINCT, and direct arguments behind the others."""

    name: str
    arguments: int
    distinct: bool
    order: tuple[Order, ...]
    literals: Mapping[str, Any]


@dataclass
class Catalog:
    """The functions of one session.

    Args:
        entries: The functions by SQL name.
        connection: Further arguments of `connect` for `USING LINK`.
        file: The file that keeps the statements that made the functions; None if they live as long as the session.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    connection: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None
    _udfs: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _written: dict[str, _Written] = field(default_factory=dict)
    _links: dict[str, Functions] = field(default_factory=dict)
    _embedded: dict[str, Function] = field(default_factory=dict)
    _functions: Functions | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of the functions."""
        return frozenset(self.entries)

    @property
    def embedded(self) -> Functions:
        """The built-in functions, and those that statements have created in this process, over one connection."""
        if self._functions is None:
            self._functions = connect(EMBEDDED)
        return self._functions

    def entry(self, name: str) -> Entry:
        """Return a function. Raises RejectedError UNKNOWN_FUNCTION with a similar name."""
        if name.lower() not in self.entries:
            close = self.closest(name)
            hint = f"did you mean {close}?" if close else "register it, or use CREATE AGGREGATE"
            raise RejectedError(
                "UNKNOWN_FUNCTION", f"SQL knows no function {name!r} of foldflight; {hint}", function=name
            )
        return self.entries[name.lower()]

    def link(self, url: str) -> Functions:
        """Return the functions of a server, connected to once."""
        if url not in self._links:
            self._links[url] = connect(url, **self.connection)
        return self._links[url]

    def embed(self, name: str, function: Function) -> FunctionHandle:
        """Fold a function in this process and in the workers of Spark, and return its handle.

        All functions that statements create so move to one new connection, so that one query can fold them together.
        """
        before = self.embedded.transport
        own = function.name if name in Registry() else name
        self._embedded[name] = replace(function, name=own)
        self._functions = connect(list(self._embedded.values()))
        for entry in list(self.entries.values()):
            if entry.handle.transport is before:
                self.entries[entry.name] = replace(entry, handle=self._functions[entry.handle.name])
        return self._functions[own]

    @contextmanager
    def unchanged_on_error(self) -> Iterator[None]:
        """Undo all changes of a block that raises."""
        before = dict(self.entries), dict(self._embedded), self._functions
        try:
            yield
        except BaseException:
            self.entries, self._embedded, self._functions = before
            raise

    def drop(self, name: str) -> None:
        """Remove a function. Results that use it stay valid."""
        del self.entries[name]
        self._embedded.pop(name, None)

    def twin(self, name: str, beside: FunctionHandle) -> FunctionHandle | None:
        """Return foldflight's built-in function of this name over the connection of another function."""
        infos = {info.name: info for info in beside.transport.infos()}
        return FunctionHandle(infos[name], beside.transport) if name in infos else None

    def closest(self, name: str) -> str | None:
        """Return the function whose name is most similar to a name, if one is similar."""
        return next(iter(difflib.get_close_matches(name.lower(), self.entries, n=1)), None)

    def udf(
        self,
        spark: SparkSession,
        entry: Entry,
        types: Sequence[pa.DataType],
        *,
        distinct: bool = False,
        order: Sequence[tuple[int, bool, bool]] = (),
        literals: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the name in Spark of a function over lists. It is registered at its first use.

        Args:
            spark: The session.
            entry: The function.
            types: The types of its arguments.
            distinct: Whether equal rows count once.
            order: For each key of the order: its field in the lists' structs, whether it descends, and whether NULL
                comes first. The arguments are the first fields; a key may be one of them.
            literals: The direct arguments.

        Raises:
            RejectedError: SCHEMA_MISMATCH, SIGNATURE or UNKNOWN_FUNCTION.
        """
        given = dict(literals or {})
        handle = entry.handle
        key = (
            entry.name,
            handle.name,
            id(handle.transport),
            tuple(types),
            distinct,
            tuple(order),
            repr(sorted(given.items())),
        )
        if key not in self._udfs:
            arguments = tuple(map(str, range(len(types))))
            keys = tuple(Order(str(place), descending, nulls_first) for place, descending, nulls_first in order)
            call = Call(handle.name, arguments, distinct=distinct, literals=given, order=keys)
            # The types of keys do not change what a function is described as; a Column does not tell them.
            others = len(dict.fromkeys(call.columns)) - len(types)
            fold = ListFold.of(handle.transport, call, [*types, *[pa.int64()] * others])
            plain = re.sub(r"\W", "_", entry.name)
            name = f"{_PREFIX}{plain}_{len(self._udfs)}"
            spark.udf.register(name, fold.over_lists())
            self._udfs[key] = name
            self._written[name] = _Written(entry.name, len(types), distinct, keys, given)
        return self._udfs[key]

    def register(self, spark: SparkSession, entry: Entry) -> None:
        """Add a function.

        Plain SQL of the session knows it, too, if its types are fixed, it needs no direct arguments, and Spark has no
        aggregate of this name.
        """
        self.entries[entry.name] = entry
        is_complete = not any(parameter.required for parameter in entry.handle.info.parameters)
        if entry.types and is_complete and entry.name not in AGGREGATES:
            arguments = tuple(map(str, range(len(entry.types))))
            fold = ListFold.of(entry.handle.transport, Call(entry.handle.name, arguments), entry.types)
            spark.udf.register(entry.name, fold.over_groups())

    def as_written(self, message: str) -> str:
        """Return a text of Spark's with the functions over lists as users write them."""
        while (found := re.search(rf"{_PREFIX}\w+(?=\()", message)) is not None and found[0] in self._written:
            try:
                stop = _closing(message, found.end())
                text = Text(message[found.start() : stop])
            except (SqlError, ValueError):
                return message
            message = message[: found.start()] + self._call_as_written(text) + message[stop:]
        return message

    def _call_as_written(self, text: Text) -> str:
        """Return `f(a, b) FILTER ...` for `udf(collect_list(named_struct('0', a, '1', b)) FILTER ...)`."""
        written = self._written[text.tokens[0].name]
        if not text.says(2, "COLLECT_LIST", "("):
            return text.text.replace(text.tokens[0].text, written.name, 1)
        inner = text.partner[3]
        fields: list[str] = []
        if text.says(4, _STRUCT.upper(), "("):
            parts = text.split(Span(6, text.partner[5]))
            fields = [text.slice(part) for part in parts[1::2]]
        arguments = fields[: written.arguments] or ["*"] * (not written.literals)
        arguments += [f"{name} => {value!r}" for name, value in written.literals.items()]
        keys = [(fields[int(each.column)], each) for each in written.order]
        order = ", ".join(f"{key} {'DESC' if each.descending else 'ASC'}" for key, each in keys)
        head = f"{written.name}({'DISTINCT ' * written.distinct}{', '.join(arguments)}{order and ' ORDER BY ' + order})"
        return head + text.text[text.tokens[inner].stop : -1]

    def as_called(self, use: Aggregate) -> str:
        """Return the name of a column for a use of a function."""
        given = [*map(text_of, use.columns), *(f"{name} => {value!r}" for name, value in use.literals.items())]
        return f"{use.function.name}({'DISTINCT ' * use.is_distinct}{', '.join(given)})"

    def statements(self) -> Iterator[str]:
        """Yield the CREATE AGGREGATE statements of the functions that statements made."""
        for entry in self.entries.values():
            if entry.statement:
                yield entry.statement


def _closing(text: str, opening: int) -> int:
    """Return the position after the parenthesis that belongs to the one at `opening`."""
    depth = 0
    for place in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError(text)


_catalogs: WeakKeyDictionary[SparkSession, Catalog] = WeakKeyDictionary()


def catalog_of(spark: SparkSession) -> Catalog:
    """Return the catalogue of a session."""
    return _catalogs.setdefault(spark, Catalog())
