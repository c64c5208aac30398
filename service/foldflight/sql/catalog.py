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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from foldflight.client import Aggregate, FunctionHandle, Functions, Transport, connect
from foldflight.client.connect import EMBEDDED
from foldflight.engine.query.layout import chunk_names
from foldflight.errors import RejectedError
from foldflight.exchange.frames import FunctionInfo
from foldflight.fold.coroutines import no_running_values
from foldflight.functions import Call, Function, FunctionKind, Order, Registry, parse_type
from foldflight.spark.columns import quote_name, text_of
from foldflight.spark.months import is_months, storage_types_of
from foldflight.spark.scalar import declared_udf
from foldflight.spark.storage_types import result_types
from foldflight.spark.types import check_udf, result_type
from foldflight.spark.versions.facts import PLAIN_AGGREGATES, PLAIN_TABLES
from foldflight.spark.versions.sessions import check_workers, is_spark
from foldflight.spark.versions.types import spark_type
from foldflight.sql.calls import AGGREGATES
from foldflight.sql.list_folds import ListFold
from foldflight.sql.text import Span, SqlError, Text

_PREFIX: Final = "foldflight__"
_STRUCT: Final = "named_struct"
_UNLISTED: Final = ("unnest",)  # Spark's own functions that SHOW SYSTEM FUNCTIONS leaves out


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
        is_declared: Whether a statement declares the types; otherwise its author does.
    """

    name: str
    handle: FunctionHandle
    types: tuple[pa.DataType, ...] | None
    where: str
    statement: str = ""
    append_only: bool = False
    is_declared: bool = True

    @classmethod
    def of(cls, name: str, handle: FunctionHandle, where: str) -> Entry:
        """Return the entry for a function with the types that its author declared."""
        input_types = handle.info.input_types
        types = None if input_types is None else tuple(map(parse_type, input_types))
        return cls(name.lower(), handle, types, where, append_only=not handle.info.retract, is_declared=False)

    def types_for(self, argument_types: Sequence[pa.DataType]) -> tuple[pa.DataType, ...]:
        """Return the types of its arguments for columns of these types; a statement declares one kind of timestamps."""
        input_texts = self.handle.info.for_types(argument_types).input_types
        return (self.types or ()) if self.is_declared or input_texts is None else tuple(map(parse_type, input_texts))

    @property
    def has_plain_calls(self) -> bool:
        """Whether plain SQL knows it: it has fixed types, no required direct arguments, and no name of Spark's."""
        is_complete = not any(parameter.required for parameter in self.handle.info.parameters)
        return bool(self.types) and is_complete and self.name not in AGGREGATES


@dataclass(frozen=True)
class ScalarEntry:
    """One scalar or table function of a catalogue.

    Args:
        name: Its name in SQL, in lower case.
        handle: The function.
        types: The types of its arguments.
        returns: The type of its result; for a table function, the struct of its columns.
        where: Where it is evaluated, for SHOW FOLDFLIGHT FUNCTIONS.
        statement: The CREATE FUNCTION statement that made it; empty for a registered or temporary one.
    """

    name: str
    handle: FunctionHandle
    types: tuple[pa.DataType, ...]
    returns: pa.DataType
    where: str
    statement: str = ""

    @classmethod
    def of(cls, name: str, handle: FunctionHandle, where: str) -> ScalarEntry:
        """Return the entry for a function with the types that its author declared. Raises RejectedError SIGNATURE."""
        info = handle.info
        if info.input_types is None or info.result_type is None:
            raise RejectedError(
                "SIGNATURE",
                f"the types of {info.signature} depend on its arguments; declare them: CREATE FUNCTION {name}(type) "
                "RETURNS type LANGUAGE python AS 'module:function'",
                function=info.name,
            )
        return cls(name.lower(), handle, tuple(map(parse_type, info.input_types)), parse_type(info.result_type), where)

    @property
    def arguments(self) -> pa.StructType:
        """The names and types of its arguments."""
        names = self.handle.info.input_names
        more = [f"argument_{index + 1}" for index in range(len(names), len(self.types))]
        return pa.struct(list(zip([*names, *more], self.types, strict=False)))

    @property
    def is_table(self) -> bool:
        """Whether it is a table function."""
        return self.handle.info.kind is FunctionKind.TABLE

    @property
    def has_own_types(self) -> bool:
        """Whether its author declared its types; otherwise a statement did."""
        input_texts = self.handle.info.input_types
        return input_texts is not None and tuple(map(parse_type, input_texts)) == self.types

    @property
    def zoned_form(self) -> ScalarEntry:
        """The same function for timestamps with a zone; itself, if it does not take both kinds."""
        info = self.handle.info
        if info.zoned_types is None or info.zoned_result is None:
            return self
        return replace(self, types=tuple(map(parse_type, info.zoned_types)), returns=parse_type(info.zoned_result))

    @property
    def has_plain_calls(self) -> bool:
        """Whether it can be called without direct arguments."""
        return not any(parameter.required for parameter in self.handle.info.parameters)


@dataclass(frozen=True)
class _UdfCall:
    """How a UDF's call is written by users: with DISTINCT, and direct arguments behind the others.

    With `has_months` some of its arguments are intervals of years and months, of which it gets the months.
    """

    name: str
    arguments: int
    distinct: bool
    order: tuple[tuple[int, bool], ...]
    literals: Mapping[str, Any]
    has_months: bool = False


@dataclass
class Catalog:
    """The functions of one session.

    Args:
        entries: The aggregates by SQL name.
        mapped: The scalar and table functions by SQL name.
        connection: Further arguments of `connect` for `USING LINK`.
        file: The file that keeps the statements that made the functions; None if they live as long as the session.
        folded_together: The names of functions in blocks whose rows Python has folded. The next such block is planned
            with its rows at once, and not with their types first.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    mapped: dict[str, ScalarEntry] = field(default_factory=dict)
    connection: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None
    folded_together: set[frozenset[str]] = field(default_factory=set)
    _udfs: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _list_udfs: dict[tuple[Any, ...], tuple[str, st.DataType, st.DataType]] = field(default_factory=dict)
    _udf_calls: dict[str, _UdfCall] = field(default_factory=dict)
    _links: dict[str, Functions] = field(default_factory=dict)
    _twins: dict[Transport, Mapping[str, FunctionInfo]] = field(default_factory=dict)
    _embedded: dict[str, Function] = field(default_factory=dict)
    _functions: Functions | None = None
    _of_spark: frozenset[str] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of the aggregates."""
        return frozenset(self.entries)

    @property
    def embedded_functions(self) -> Functions:
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

    def connect_with(self, connection: Mapping[str, Any]) -> None:
        """Set the arguments of `connect` for `USING LINK`. Servers are connected to again if they have changed."""
        if connection != self.connection:
            self._links.clear()
        self.connection = connection

    def link(self, url: str) -> Functions:
        """Return the functions of a server, connected to once."""
        if url not in self._links:
            self._links[url] = connect(url, **self.connection)
        return self._links[url]

    def embed(self, name: str, function: Function) -> FunctionHandle:
        """Fold a function in this process and in the workers of Spark, and return its handle.

        All functions that statements create so move to one new connection, so that one query can fold them together.
        """
        own = function.name if name in Registry() else name
        self._connect_embedded({**self._embedded, name: replace(function, name=own)}, without=name)
        return self.embedded_functions[own]

    def release(self, name: str) -> None:
        """Forget a function that this process folds for a statement.

        Raises:
            RejectedError: UNKNOWN_FUNCTION, if another function of the catalogue is an alias of it.
        """
        if name not in self._embedded:
            return
        alias = next((each for each in self.entries.values() if self._is_alias(each, name)), None)
        if alias is not None:
            raise RejectedError(
                "UNKNOWN_FUNCTION",
                f"{alias.name} was created AS '{name}' and would lose its function; write DROP AGGREGATE {alias.name} "
                "before",
                function=name,
            )
        others = {each: function for each, function in self._embedded.items() if each != name}
        self._connect_embedded(others, without=name)

    def _is_alias(self, entry: Entry, name: str) -> bool:
        return (
            entry.name != name
            and entry.handle.transport is self.embedded_functions.transport
            and entry.handle.name == name
        )

    def _connect_embedded(self, functions: dict[str, Function], without: str) -> None:
        """Move the functions that this process folds to one new connection, besides the one that is replaced."""
        before = self.embedded_functions.transport
        self._embedded = functions
        self._functions = connect(list(functions.values())) if functions else connect(EMBEDDED)
        for entry in list(self.entries.values()):
            if entry.handle.transport is before and entry.name != without:
                self.entries[entry.name] = replace(entry, handle=self._functions[entry.handle.name])

    @contextmanager
    def unchanged_on_error(self) -> Iterator[None]:
        """Undo all changes of a block that raises."""
        before = dict(self.entries), dict(self.mapped), dict(self._embedded), self._functions
        try:
            yield
        except BaseException:
            self.entries, self.mapped, self._embedded, self._functions = before
            raise

    def drop(self, spark: SparkSession, name: str) -> None:
        """Remove a function, also from plain SQL. Results that use it stay valid.

        Raises:
            RejectedError: UNKNOWN_FUNCTION, if another function of the catalogue is an alias of it.
        """
        if name in self.mapped:
            is_plain = self.mapped.pop(name).has_plain_calls
        else:
            self.release(name)
            is_plain = self.entries.pop(name).has_plain_calls
        if is_plain:
            plain_sql(spark, f"DROP TEMPORARY FUNCTION IF EXISTS {quote_name(name)}")

    def twin(self, name: str, beside: FunctionHandle) -> FunctionHandle | None:
        """Return foldflight's built-in function of this name over the connection of another function."""
        transport = beside.transport
        if transport not in self._twins:  # servers are asked once, not for each block
            self._twins[transport] = {info.name: info for info in transport.infos()}
        info = self._twins[transport].get(name)
        return None if info is None else FunctionHandle(info, transport)

    def closest(self, name: str) -> str | None:
        """Return the function whose name is most similar to a name, if one is similar."""
        return next(iter(difflib.get_close_matches(name.lower(), [*self.entries, *self.mapped], n=1)), None)

    def udf(
        self,
        spark: SparkSession,
        entry: Entry,
        types: Sequence[pa.DataType],
        *,
        distinct: bool = False,
        order: Sequence[tuple[int, bool, bool]] = (),
        literals: Mapping[str, Any] | None = None,
        given: Sequence[st.DataType] = (),
        is_over: bool = False,
    ) -> tuple[str, st.DataType, st.DataType]:
        """Return a function over lists, which is registered at its first use.

        Args:
            spark: The session.
            entry: The function.
            types: The types of its arguments.
            distinct: Whether equal rows count once.
            order: For each key of the order: its field in the lists' structs, whether it descends, and whether NULL
                comes first. The arguments are the first fields; a key may be one of them.
            literals: The direct arguments.
            given: Spark's types of the arguments, which results may have; none if they are not known.
            is_over: Whether each row has a list, its window frame.

        Returns:
            Its name in Spark, the type of its results, and the type that they are to have: another one for intervals of
            years and months.

        Raises:
            RejectedError: SCHEMA_MISMATCH, SIGNATURE or UNKNOWN_FUNCTION.
        """
        literals = dict(literals or {})
        handle = entry.handle
        # The transport stays the same if source code is shipped again to its server; the statement then differs.
        key = (
            entry.name,
            entry.statement,
            handle.name,
            handle.transport,
            tuple(types),
            distinct,
            tuple(order),
            repr(sorted(literals.items())),
            tuple(given),
            is_over,
        )
        if key not in self._list_udfs:
            names = _argument_names(handle, len(types))
            indexes = [len(types), *(index for index, _, _ in order)]
            names += [f"order key {number}" for number in range(1, max(indexes) - len(types) + 2)]
            keys = tuple(Order(names[index], descending, nulls_first) for index, descending, nulls_first in order)
            call = Call(handle.name, tuple(names[: len(types)]), distinct=distinct, literals=literals, order=keys)
            # The types of keys do not change what a function is described as; a Column does not tell them.
            others = len(dict.fromkeys(call.columns)) - len(types)
            fold = ListFold.of(handle.transport, call, [*types, *[pa.int64()] * others])
            if is_over and fold.calls_out:
                raise no_running_values(handle.name)
            spark_result = result_type(handle.info, given, fold.result)
            check_udf(spark_result, entry.name)
            name = self._udf_name(entry.name)
            (result,) = storage_types_of([spark_result], [fold.result])
            spark.udf.register(name, fold.over_lists(result))
            self._list_udfs[key] = name, result, spark_result
            directions = tuple((index, descending) for index, descending, _ in order)
            has_months = any(map(is_months, given))
            self._udf_calls[name] = _UdfCall(entry.name, len(types), distinct, directions, literals, has_months)
        return self._list_udfs[key]

    def register(self, spark: SparkSession, entry: Entry) -> None:
        """Add a function.

        Plain SQL of the session knows it, too, if its types are fixed, it needs no direct arguments, and Spark has no
        aggregate of this name.

        Raises:
            RejectedError: SIGNATURE for a name that no call can have.
        """
        _check_name(entry.name)
        self.entries[entry.name] = entry
        if entry.has_plain_calls and entry.types and PLAIN_AGGREGATES.has():
            arguments = _argument_names(entry.handle, len(entry.types))
            fold = ListFold.of(entry.handle.transport, Call(entry.handle.name, tuple(arguments)), entry.types)
            spark.udf.register(entry.name, fold.over_groups())

    def names_of_spark(self, spark: SparkSession) -> frozenset[str]:
        """Return the names of Spark's own functions, which it calls even if another one is registered."""
        if self._of_spark is None:
            names = (row[0] for row in plain_sql(spark, "SHOW SYSTEM FUNCTIONS").collect())
            self._of_spark = frozenset([*names, *_UNLISTED])
        return self._of_spark

    def register_scalar(self, spark: SparkSession, entry: ScalarEntry) -> None:
        """Add a scalar or table function. All SQL of the session knows it, if it needs no direct arguments.

        Raises:
            RejectedError: SIGNATURE for a function without arguments, or with the name of a function of Spark;
                SCHEMA_MISMATCH for a type that Spark does not have.
        """
        _check_name(entry.name)
        if not entry.types:
            raise RejectedError(
                "SIGNATURE",
                f"{entry.name} has no arguments, and a UDF of Spark needs one; give it an argument",
                function=entry.name,
            )
        if entry.name in self.names_of_spark(spark):
            raise RejectedError(
                "SIGNATURE",
                f"Spark has a function {entry.name} of its own, which it would call; choose another name",
                function=entry.name,
            )
        if entry.is_table and not is_spark(spark):
            raise RejectedError(
                "SIGNATURE",
                f"Sail has no CREATE TEMPORARY FUNCTION, by which SQL calls the table function {entry.name}; use "
                "join_lateral",
                function=entry.name,
            )
        if entry.has_plain_calls:
            self._define(spark, entry)
        self.mapped[entry.name] = entry

    def _define(self, spark: SparkSession, entry: ScalarEntry) -> None:
        """Make a function known to Spark under its name, in place of the one of this name."""
        name = quote_name(entry.name)
        udf = None if entry.is_table else self._scalar_udf(entry, {})
        if entry.is_table and not PLAIN_TABLES.has():
            return
        rows = self.scalar_udf(spark, entry, {}) if entry.is_table else ""
        if entry.name in self.mapped:  # scalar and table functions have names of their own in Spark
            plain_sql(spark, f"DROP TEMPORARY FUNCTION IF EXISTS {name}")
        if udf is not None:
            spark.udf.register(entry.name, udf)
            return
        # A function of SQL can be joined with LATERAL, and Spark casts its arguments. An array of rows for each row is
        # one trip to Python for a whole batch.
        arguments = ", ".join(quote_name(field.name) for field in entry.arguments)
        plain_sql(
            spark,
            f"CREATE TEMPORARY FUNCTION {name}({_ddl(entry.arguments)}) RETURNS TABLE ({_ddl(entry.returns)}) "
            f"RETURN SELECT * FROM inline({rows}({arguments}))",
        )

    def scalar_udf(
        self, spark: SparkSession, entry: ScalarEntry, literals: Mapping[str, Any], *, is_guarded: bool = False
    ) -> str:
        """Return Spark's name of a function with these direct arguments; a table function gives arrays of rows.

        A guarded one has a condition as first argument; see `declared_udf`.
        """
        key = (entry, repr(sorted(literals.items())), is_guarded)
        if key not in self._udfs:
            check_workers(spark)
            name = self._udf_name(entry.name)
            spark.udf.register(name, self._scalar_udf(entry, literals, is_guarded=is_guarded))
            self._udfs[key] = name
            self._udf_calls[name] = _UdfCall(entry.name, len(entry.types), distinct=False, order=(), literals=literals)
        return self._udfs[key]

    @staticmethod
    def _scalar_udf(entry: ScalarEntry, literals: Mapping[str, Any], *, is_guarded: bool = False) -> Any:
        inputs = () if entry.has_own_types else entry.types
        return declared_udf(
            entry.handle.info, entry.handle.transport, inputs, entry.returns, literals, is_guarded=is_guarded
        )

    def _udf_name(self, name: str) -> str:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)  # Spark demands backquotes around other letters
        return f"{_PREFIX}{plain}_{len(self._udf_calls)}"

    def as_written(self, message: str) -> str:
        """Return a text of Spark's with the functions over lists as users write them."""
        while (match := re.search(rf"{_PREFIX}\w+(?=\()", message)) is not None and match[0] in self._udf_calls:
            try:
                stop = _closing(message, match.end())
                text = Text(message[match.start() : stop])
            except (SqlError, ValueError):
                return message
            head, tail = message[: match.start()], message[stop:]
            call = _without_numbers(self._call_as_written(text))
            if self._udf_calls[match[0]].has_months:
                call = _MONTHS.sub(r"\1", call)
                head, tail = _OPENED.sub("", head), _CLOSED.sub("", tail)
            message = head + call + tail
        return message

    def _call_as_written(self, text: Text) -> str:
        """Return `f(a, b) FILTER ...` for `udf(collect_list(named_struct('0', a, '1', b)) FILTER ...)`."""
        udf_call = self._udf_calls[text.tokens[0].name]
        if not text.says(2, "COLLECT_LIST", "("):
            literals = "".join(f", {name} => {value!r}" for name, value in udf_call.literals.items())
            return f"{udf_call.name}{text.text[text.tokens[0].stop : -1]}{literals})"
        inner = text.partner[3]
        fields: list[str] = []
        if text.says(4, _STRUCT.upper(), "("):
            parts = text.split(Span(6, text.partner[5]))
            fields = [text.slice(part) for part in parts[1::2]]
        arguments = fields[: udf_call.arguments] or ["*"] * (not udf_call.literals)
        arguments += [f"{name} => {value!r}" for name, value in udf_call.literals.items()]
        order = ", ".join(f"{fields[index]} {'DESC' if descending else 'ASC'}" for index, descending in udf_call.order)
        head = (
            f"{udf_call.name}({'DISTINCT ' * udf_call.distinct}{', '.join(arguments)}{order and ' ORDER BY ' + order})"
        )
        return head + text.text[text.tokens[inner].stop : -1]

    def as_called(self, use: Aggregate) -> str:
        """Return the name of a column for a use of a function."""
        arguments = [*map(text_of, use.columns), *(f"{name} => {value!r}" for name, value in use.literals.items())]
        return f"{use.function.name}({'DISTINCT ' * use.is_distinct}{', '.join(arguments)})"

    def statements(self) -> dict[str, str]:
        """Return the CREATE statements of the functions that statements made, by name."""
        entries: list[Entry | ScalarEntry] = [*self.entries.values(), *self.mapped.values()]
        return {entry.name: entry.statement for entry in entries if entry.statement}

    def is_alias(self, name: str) -> bool:
        """Return whether a function of the catalogue is folded by a function of another name."""
        return name in self.entries and self.entries[name].handle.name != name


def _check_name(name: str) -> None:
    """Raise RejectedError for a name that no call can have."""
    if not name.strip() or name.startswith(_PREFIX):
        raise RejectedError(
            "SIGNATURE",
            f"{quote_name(name)} cannot be the name of a function: names are not empty, and do not begin with "
            f"{_PREFIX}, which foldflight uses itself",
        )


def _argument_names(handle: FunctionHandle, count: int) -> list[str]:
    """Return the names of a call's columns: errors show rows under them."""
    input_names = handle.info.input_names
    return chunk_names(
        input_names[index] if index < len(input_names) else f"argument {index + 1}" for index in range(count)
    )


def _ddl(columns: pa.StructType) -> str:
    """Return columns as Spark declares them: names and types."""
    storages = result_types([field.name for field in columns], [field.type for field in columns])
    types = (type_ddl(spark_type(type_)) for type_ in storages)
    return ", ".join(f"{quote_name(field.name)} {type_}" for field, type_ in zip(columns, types, strict=True))


def type_ddl(type_: st.DataType) -> str:
    """Return a type as Spark declares it. Its own text does not quote the names of members."""
    if isinstance(type_, st.StructType):
        return f"struct<{', '.join(f'{quote_name(each.name)}: {type_ddl(each.dataType)}' for each in type_)}>"
    if isinstance(type_, st.ArrayType):
        return f"array<{type_ddl(type_.elementType)}>"
    if isinstance(type_, st.MapType):
        return f"map<{type_ddl(type_.keyType)}, {type_ddl(type_.valueType)}>"
    return type_.simpleString()


def plain_sql(spark: SparkSession, text: str, args: Any = None, **views: DataFrame) -> DataFrame:
    """Have Spark run a statement, in a session whose `sql` may have been replaced by `enable`."""
    # PySpark makes an array in Java of a list, and of None, in four more calls.
    return type(spark).sql(spark, text, args or {}, **views)


def _without_numbers(text: str) -> str:
    """Return Spark's text of a call as in its names of columns: `exists()` for `exists#872 []`.

    The arguments of a Python function have Spark's internal texts, whose numbers differ each time.
    """

    def as_named(match: re.Match[str]) -> str:
        outer = re.sub(r"#\d+L?", "", match[2])
        return f"{_SUBQUERIES[match[1]]}({outer})"

    text = re.sub(r"\blambda \w+#\d+", "namedlambdavariable()", text)
    return re.sub(rf"\b({'|'.join(_SUBQUERIES)})#\d+ \[([^\]]*)\]", as_named, text)


def _closing(text: str, opening: int) -> int:
    """Return the position after the parenthesis that belongs to the one at `opening`."""
    depth = 0
    for index in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    raise ValueError(text)


# The casts around the call of a function, and around its arguments, for intervals of years and months.
_MONTHS: Final = re.compile(r"CAST\(CAST\((.*?) AS INTERVAL MONTH\) AS INT\)", re.IGNORECASE)
_OPENED: Final = re.compile(r"CAST\(CAST\((CAST\(round\()?$")
_CLOSED: Final = re.compile(r"^(, 0\) AS BIGINT\))? AS INTERVAL MONTH\) AS INTERVAL [A-Z ]+\)")
_SUBQUERIES: Final = {"scalar-subquery": "scalarsubquery", "exists": "exists", "list": "listquery"}

_catalogs: WeakKeyDictionary[SparkSession, Catalog] = WeakKeyDictionary()


def catalog_of(spark: SparkSession) -> Catalog:
    """Return the catalogue of a session."""
    return _catalogs.setdefault(spark, Catalog())
