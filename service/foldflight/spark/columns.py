"""The columns of a query: resolves the user's names and expressions with Spark, under names that cannot collide."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    ParseException,
    PySparkException,
    PySparkValueError,
)
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.client.functions import Aggregate, OrderKey, Use, UseMember
from foldflight.engine.query.blocks import without_nullability
from foldflight.engine.query.layout import KIND, REAL, SLOT, chunk_names
from foldflight.errors import RejectedError
from foldflight.exchange.frames import FunctionInfo
from foldflight.functions import Call, Order, RowKind, can_widen, parse_type, sql_name
from foldflight.functions.types.arrow import is_json
from foldflight.functions.types.vectors import is_vector
from foldflight.spark.errors import raise_error
from foldflight.spark.rowkinds import hint_for_code, hint_for_columns, refuse_several, refuse_updates
from foldflight.spark.types import check_compared, result_type
from foldflight.spark.versions.sessions import message_of, mute_query_log
from foldflight.spark.versions.types import arrow_type, spark_type

spark_name = functools.partial(sql_name, zoneless="TIMESTAMP_NTZ", zoned="TIMESTAMP_LTZ")
"""Return the name of an Arrow type in Spark SQL."""

# Spark's message ends with its SQLSTATE. The plan and, in Spark Connect, the server's stack trace follow it.
_SQLSTATE_PREFIX: Final = re.compile(r".*?SQLSTATE: \w{5}", re.DOTALL)
# PySpark's messages, without and with Connect, for TIMESTAMP(9): Spark 4.3 has this type, and PySpark no class for it.
_NANOSECONDS: Final = re.compile(r"timestamp_(ntz|ltz)(?:\(|_nanos\s*\{\s*precision: )(\d)")
_KINDS = ", ".join(each.short for each in RowKind)
_KIND_CHARACTERS: Final = 80  # of a text that is no row kind, in its error
# Expressions that cannot fail: a column, a member of a column, or a constant.
_SIMPLE: Final = re.compile(r"[\w.]+")
_WORD: Final = re.compile(r"\w+", re.ASCII)
_CONDITION: Final = "foldflight condition {}"
# The direction at the end of PySpark's text of a column; no property of the column has it.
_DIRECTED: Final = re.compile(r" (?:ASC|DESC) NULLS (?:FIRST|LAST)$")
# Texts that certainly give their result no name: an operand, alone or behind an operator, or an end that is no name.
_NAMELESS: Final = re.compile(r"(?:.*[-+*%<>=(,|&!])?\s*[\w.]+\s*|.*[^\w`\"\s]\s*", re.DOTALL)


@dataclass(frozen=True)
class _ChunkColumn:
    """A column of the query that is an argument or a condition.

    Args:
        display_name: Its name in chunks, which errors show.
        resolved: The resolved column; None for the column of this name in the input, because PySpark makes a column by
            several calls of Java.
        role: Its role in the query, for errors: `the argument 'v' of sum`.
        text: The user's text of it.
        expression: What the user wrote.
    """

    display_name: str
    resolved: Column | None
    role: str
    text: str
    expression: object

    @property
    def column(self) -> Column:
        """The column."""
        return column_named(self.text) if self.resolved is None else self.resolved


@dataclass
class Columns:
    """Collects the columns of a query and resolves them together.

    An argument of calls with a condition is evaluated where one of these conditions holds, as in Spark: `1 / x` fails
    for no row that FILTER leaves out.

    Args:
        df: The input.
        keys: The keys; a text is the name of a column of the input.
        names: The names of the keys.
        kind: The row kind; None if rows have none.
        reserved: Names that no column may have in chunks.
    """

    df: DataFrame
    keys: Sequence[Column | str] = ()
    names: Sequence[str] = ()
    kind: Column | None = None
    reserved: tuple[str, ...] = (SLOT, KIND)
    _chunk_columns: dict[tuple[str, object], _ChunkColumn] = field(default_factory=dict)  # by the user's text or column
    _expressions: list[object] = field(default_factory=list)
    _guards: dict[str, set[str]] = field(default_factory=dict)  # the conditions of each argument, as names in chunks
    _rows: DataFrame | None = None

    def argument(self, expression: object, function: str) -> str:
        """Return the name of the chunk's column that holds an argument; equal texts share one."""
        role = f"the argument {text_of(expression)!r} of {function}"
        return self._add("", expression, role)

    def condition(self, expression: object, function: str) -> str:
        """Return the name of the chunk's column that holds a condition."""
        role = f"the condition {text_of(expression)!r} of {function}"
        return self._add("where ", expression, role)

    def key(self, expression: object, function: str) -> str:
        """Return the name of the chunk's column that holds a key of an order; equal arguments share it."""
        role = f"the order {text_of(expression)!r} of {function}"
        return self._add("", expression, role)

    def _add(self, prefix: str, expression: object, role: str) -> str:
        # Columns are compared by identity, because `==` builds an expression. Keeping a reference keeps the id unique.
        self._expressions.append(expression)
        key = (prefix, expression if isinstance(expression, str) else id(expression))
        if key not in self._chunk_columns:
            column = None if is_column(self.df, expression) else column_of(self.df, expression, role)
            # Errors show rows under these names, so the names are the user's texts.
            text = (
                str(expression) if column is None or isinstance(expression, str) else self._display_name(column, role)
            )
            (display_name,) = chunk_names([prefix + text], {*self.reserved, *self.display_names})
            self._chunk_columns[key] = _ChunkColumn(display_name, column, role, text_of(expression), expression)
        return self._chunk_columns[key].display_name

    def _display_name(self, column: Column, role: str) -> str:
        """Return the name that Spark gives a column in a result."""
        with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot resolve {role}"):
            name: str = self.df.select(column).columns[0]
        return name

    @property
    def display_names(self) -> list[str]:
        """The names of arguments and conditions in chunks, in the order of `rows`."""
        return [entry.display_name for entry in self._chunk_columns.values()]

    @property
    def input(self) -> DataFrame:
        """The input, with a column for each condition that guards an argument and is not a column already.

        There each condition is evaluated once for a row, so that `rand() > 0.5` is the same for all that it guards.
        """
        columns = {
            self._condition_name(each): self._by_display_name[each].column
            for each in self._used_guards
            if not self._is_simple(each)
        }
        return self.df.withColumns(columns) if columns else self.df

    @property
    def expressions(self) -> list[Column]:
        """The arguments and conditions over `input`, in the order of `display_names`."""
        return [self._expression(entry) for entry in self._chunk_columns.values()]

    def _expression(self, entry: _ChunkColumn) -> Column:
        conditions = self._guards.get(entry.display_name, set()) if not self._is_simple(entry.display_name) else set()
        if conditions:
            holds = [self._over_input(each).cast("boolean") for each in sorted(conditions)]
            return _null_unless(self.df, entry.expression, functools.reduce(Column.__or__, holds), entry.role)
        return self._over_input(entry.display_name) if entry.display_name in self._used_guards else entry.column

    def _over_input(self, condition: str) -> Column:
        if self._is_simple(condition):
            return self._by_display_name[condition].column
        return column_named(self._condition_name(condition))

    @property
    def _used_guards(self) -> list[str]:
        """The conditions that guard arguments which may fail, in the order of `display_names`."""
        used_guards = {each for name, guards in self._guards.items() if not self._is_simple(name) for each in guards}
        return [each for each in self._by_display_name if each in used_guards]

    @property
    def _by_display_name(self) -> dict[str, _ChunkColumn]:
        return {entry.display_name: entry for entry in self._chunk_columns.values()}

    def _condition_name(self, condition: str) -> str:
        return _CONDITION.format(list(self._by_display_name).index(condition))

    def _is_simple(self, display_name: str) -> bool:
        """Return whether an argument or condition is a column, or cannot fail for another reason."""
        text = self._by_display_name[display_name].text
        return text in self.df.columns or _SIMPLE.fullmatch(text) is not None

    @property
    def user_expressions(self) -> list[object]:
        """The arguments and conditions as the user wrote them, in the order of `display_names`."""
        return [entry.expression for entry in self._chunk_columns.values()]

    def rows(self) -> DataFrame:
        """Return the input reduced to keys, kind, arguments and conditions, in that order.

        Raises:
            RejectedError: SCHEMA_MISMATCH, with Spark's message, if a column or expression cannot be resolved.
        """
        if self._rows is not None:
            return self._rows
        try:
            with mute_query_log(), reject_nanoseconds("Spark cannot resolve the columns of the query"):
                rows = self._select()
                rows.schema  # noqa: B018 - resolves the columns now: mistakes belong to this call, not to an action
        except (AnalysisException, ParseException) as error:
            self._refuse_single()
            raise _resolution_error("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the query", error) from None
        self._rows = rows
        return rows

    def _select(self) -> DataFrame:
        plain = self.plain
        # PySpark makes a Column by several calls of Java, and a text by one. But in a text Spark puts a setting's value
        # for ${...}, and a session may have it read names with such characters as patterns.
        if plain is not None and all(map(_WORD.fullmatch, plain.values())):
            return self.df.selectExpr(*(f"{quote_name(expression)} AS {name}" for name, expression in plain.items()))
        selection = [key_column(key).alias(f"key_{index}") for index, key in enumerate(self.keys)]
        if self.kind is not None:
            selection.append(_kind_number(self.kind).alias(KIND))
        selection += [column.alias(f"column_{index}") for index, column in enumerate(self.expressions)]
        return self.input.select(selection or [sf.lit(True).alias(REAL)])

    @property
    def plain(self) -> dict[str, str] | None:
        """The columns of `rows`, by name, as names of the input's columns; None if one is something else."""
        entries = self._chunk_columns.values()
        is_plain = all(isinstance(key, str) for key in self.keys) and all(each.resolved is None for each in entries)
        if not is_plain or self.kind is not None or not (self.keys or entries):
            return None
        keys = {f"key_{index}": str(key) for index, key in enumerate(self.keys)}
        return keys | {f"column_{index}": each.text for index, each in enumerate(entries)}

    def schema(self) -> st.StructType:
        """Return the schema of `rows`. Spark is not asked if they are columns of the input. Raises the same errors."""
        if (plain := self.plain) is None:
            return self.rows().schema
        fields_by_name = {each.name: each for each in self.df.schema}
        fields = [(name, fields_by_name[expression]) for name, expression in plain.items()]
        return st.StructType([st.StructField(name, each.dataType, each.nullable) for name, each in fields])

    def _refuse_single(self) -> None:
        """Refuse the first column that cannot be resolved on its own."""
        for role, column in zip(
            self.roles(),
            [*map(key_column, self.keys), *(each.column for each in self._chunk_columns.values())],
            strict=True,
        ):
            _only_name(self.df, column, role)

    def calls(self, aggregates: Sequence[Aggregate]) -> tuple[Call, ...]:
        """Return the calls of aggregates over these columns."""
        return tuple(map(self._call, aggregates))

    def _call(self, use: Aggregate) -> Call:
        name = use.function.name
        arguments = tuple(self.argument(column, name) for column in use.columns)
        condition = None if use.condition is None else self.condition(use.condition, name)
        order = tuple(
            Order(self.key(key.column, name), key.descending, key.nulls_first)
            for key in (sort_key(self.df, expression) for expression in use.order)
        )
        for display_name in (*arguments, *(key.column for key in order)):
            if condition is None:  # it is evaluated for all rows, whatever other calls it stands in
                self._guards[display_name] = set()
            elif self._guards.get(display_name, True):
                self._guards.setdefault(display_name, set()).add(condition)
        return Call(name, arguments, filter=condition, distinct=use.is_distinct, literals=use.literals, order=order)

    def check_compared(self, aggregates: Sequence[Aggregate], rows: st.StructType) -> None:
        """Refuse calls that compare values which Spark compares in another way, or cannot compare.

        Args:
            aggregates: The uses.
            rows: The schema of `rows`.

        Raises:
            RejectedError: SCHEMA_MISMATCH.
        """
        types = self._types(rows)
        for each in aggregates:
            name = each.function.name
            arguments = [(text_of(expression), types[self.argument(expression, name)]) for expression in each.columns]
            keys = [sort_key(self.df, expression) for expression in each.order]
            order = [(text_of(key.column), types[self.key(key.column, name)]) for key in keys]
            check_compared(name, arguments, order, is_distinct=each.is_distinct)

    def result_types(
        self, uses: Iterable[tuple[FunctionInfo, Sequence[object]]], rows: st.StructType, outputs: Iterable[pa.DataType]
    ) -> list[st.DataType]:
        """Return Spark's types of outputs.

        Args:
            uses: For each output its function, and the arguments as the user wrote them.
            rows: The schema of `rows`.
            outputs: The storage types of the outputs.
        """
        types = self._types(rows)
        return [
            result_type(info, [types[self.argument(each, info.name)] for each in expression], type_)
            for (info, expression), type_ in zip(uses, outputs, strict=True)
        ]

    def _types(self, rows: st.StructType) -> dict[str, st.DataType]:
        """Return Spark's types of arguments and conditions by their display names, given the schema of `rows`."""
        fields = rows.fields[len(rows.fields) - len(self._chunk_columns) :]
        return {display_name: field.dataType for display_name, field in zip(self.display_names, fields, strict=True)}

    def roles(self) -> list[str]:
        """Return the role of each column of `rows` except the row kind, for errors."""
        return [*(f"the key {name!r}" for name in self.names), *(entry.role for entry in self._chunk_columns.values())]

    def refuse_types(self, aggregates: Sequence[Aggregate], columns: pa.Schema) -> None:
        """Refuse an argument whose type its function does not accept, with Spark's names of types.

        Use it when a server has refused an exchange. The server's message has the type names of functions' authors,
        which Spark interprets differently (TIMESTAMP) or does not know (TIMESTAMPTZ).

        Args:
            aggregates: The uses.
            columns: The columns of a chunk, by their display names.

        Raises:
            RejectedError: SCHEMA_MISMATCH, for the first such argument of a function whose types are fixed.
        """
        for each in aggregates:
            name = each.function.name
            column_types = [columns.field(self.argument(expression, name)).type for expression in each.columns]
            declared_types = [parse_type(text) for text in each.function.for_types(column_types).input_types or ()]
            for index, (expression, actual, type_) in enumerate(
                zip(each.columns, column_types, declared_types, strict=False)
            ):
                if not can_widen(actual, type_):
                    text = text_of(expression)
                    raise RejectedError(
                        "SCHEMA_MISMATCH",
                        f"{name} takes {spark_name(type_)} for its argument {each.function.input_names[index]}, and "
                        f"{text} is {spark_name(actual)}; {_conversion(text, actual, type_)}",
                        function=name,
                    )


def _conversion(expression: str, actual: pa.DataType, type_: pa.DataType) -> str:
    """Return the instruction that tells how to convert an argument of one type to another."""
    if is_json(type_):
        return f"give the text of JSON, as to_json({expression}) makes it"
    if not _is_of_spark(type_):
        return f"Spark has no {spark_name(type_)}, so the function's author has to declare another type"
    if is_vector(type_):
        if not pa.types.is_list(actual):
            return "give an array of numbers"
        return f"convert it in the query: CAST({expression} AS {spark_type(type_).simpleString().upper()})"
    return f"{zone_remedy(actual, type_)}convert it in the query: CAST({expression} AS {spark_name(type_)})"


def zone_remedy(actual: pa.DataType, declared_type: pa.DataType) -> str:
    """Return the remedy for an argument with a time zone of a function that takes none; otherwise an empty text.

    A cast in the query would take the digits of the session's zone, which is rarely what was meant.
    """
    if not (pa.types.is_timestamp(actual) and actual.tz and pa.types.is_timestamp(declared_type)):
        return ""
    return "TIMESTAMP in input_types is SQL's, without a time zone: declare TIMESTAMPTZ there, or "


def _is_of_spark(type_: pa.DataType) -> bool:
    """Return whether Spark has a column type that an argument of `type_` accepts."""
    try:
        column = arrow_type(spark_type(type_))
    except (RejectedError, ValueError):  # pyarrow refuses more than 38 digits by ValueError
        return False
    return can_widen(without_nullability(column), type_)


def text_of(expression: object) -> str:
    """Return the user's text of a column, for errors."""
    if isinstance(expression, str):
        return expression
    text = str(expression)
    return text.removeprefix("Column<'").removesuffix("'>") if isinstance(expression, Column) else text


@contextmanager
def reject_spark_errors(code: str, what: str) -> Iterator[None]:
    """Convert Spark's resolution errors into a RejectedError with a description and Spark's message."""
    try:
        with mute_query_log(), reject_nanoseconds(what):
            yield
    except (AnalysisException, IllegalArgumentException, ParseException) as error:
        # Not `from error`: in Spark Connect it would show the server's stack trace of a hundred lines.
        raise _resolution_error(code, what, error) from None


@contextmanager
def reject_nanoseconds(what: str) -> Iterator[None]:
    """Convert PySpark's error of a type that only Spark has into a RejectedError SCHEMA_MISMATCH with a description."""
    try:
        yield
    except PySparkValueError as error:
        match = _NANOSECONDS.search(str(error))
        if match is None:
            raise
        micros = f"TIMESTAMP_{match[1].upper()}"
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{what}: PySpark has no type for {micros}({match[2]}), so no query over it can be planned; give "
            f"CAST(... AS {micros}), which cuts off nanoseconds, or CAST(... AS STRING), which keeps them",
        ) from None


def _resolution_error(code: str, what: str, error: PySparkException) -> RejectedError:
    message = message_of(error)
    prefix = _SQLSTATE_PREFIX.match(message)
    text = prefix.group() if prefix else message.partition("JVM stacktrace:")[0]
    return RejectedError(code, f"{what}: {text.strip()}")


def column_named(name: str) -> Column:
    """Return the column of exactly this name, which may contain any characters."""
    return sf.col(quote_name(name))


def by_text(names_by_key: Mapping[str, str]) -> dict[str, str]:
    """Return the keys by the texts that `column_of` reads as these columns: the name, and the name in backquotes."""
    # The plain names come last, because a column may be named like another one in backquotes.
    return {quote_name(name): key for key, name in names_by_key.items()} | {
        name: key for key, name in names_by_key.items()
    }


def quote_name(name: str) -> str:
    """Return a name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def is_column(df: DataFrame, expression: object) -> bool:
    """Return whether this is the name of one column, whether or not Spark compares names without case."""
    if not isinstance(expression, str) or expression not in df.columns:
        return False
    return [name.casefold() for name in df.columns].count(expression.casefold()) == 1


def key_column(key: Column | str) -> Column:
    """Return the column of a key of `Columns`."""
    return column_named(key) if isinstance(key, str) else key


def key_of(df: DataFrame, expression: object, role: str) -> Column | str:
    """Return a key as `Columns` takes it. Raises RejectedError as `column_of` does."""
    return str(expression) if is_column(df, expression) else column_of(df, expression, role, may_name=True)


def column_of(df: DataFrame, expression: object, role: str, *, may_name: bool = False) -> Column:
    """Return the column for a text or Column. A text is a column of `df` if one has this name, else an expression.

    Args:
        df: The input.
        expression: The user's text or Column.
        role: Its role in the query, for errors.
        may_name: Whether a text may give its result a name, as in `upper(c) AS c`.

    Raises:
        RejectedError: SIGNATURE, if it is neither a text nor a Column, or a text with a name that has no use.
    """
    if isinstance(expression, Column):
        _refuse_direction(df, expression, role)
        return expression
    if isinstance(expression, Use):
        return _column_of_use(df, expression, role)
    if isinstance(expression, UseMember):
        return _column_of_use(df, expression.use, role).getField(expression.member)
    if isinstance(expression, Aggregate):
        raise RejectedError(
            "SIGNATURE",
            f"{role} is itself an aggregate; compute it with one agg, and aggregate its result with another",
        )
    if not isinstance(expression, str):
        raise RejectedError(
            "SIGNATURE",
            f"{role} is not a column; give a column name, a SQL expression, or a PySpark Column (for a constant write "
            "F.lit(...), or a direct argument by name)",
        )
    if expression in df.columns:
        return column_named(expression)
    if expression.strip() == "*":
        raise RejectedError(
            "SIGNATURE", f"{role} means all columns; give one column (count() without an argument counts the rows)"
        )
    column = sf.expr(expression)
    if not may_name:
        _refuse_name(df, expression, role)
    return column


def _refuse_direction(df: DataFrame, expression: Column, role: str) -> None:
    """Refuse a column such as PySpark's `desc("at")`: where no rows are sorted by it, Spark drops its direction."""
    text = text_of(expression)
    if _DIRECTED.search(text) and text not in df.columns:
        raise RejectedError(
            "SIGNATURE",
            f"{role} has PySpark's asc() or desc(), and a direction has no use here; leave it out, and write the order "
            "of a call as f(...).order_by('at DESC')",
        )


def _refuse_name(df: DataFrame, expression: str, role: str) -> None:
    """Refuse a text that names its result: for Spark, a misspelt DESC behind an expression is such a name."""
    has_comment = "--" in expression or "/*" in expression  # behind which DESC is a name, too
    if _NAMELESS.fullmatch(expression) and not has_comment:  # asking Spark takes time
        return
    # In parentheses Spark takes an expression without a name only. A comment would hide the closing one.
    if _is_readable(df, f"({expression}\n)") or not _is_readable(df, expression):
        return
    last = expression.rsplit(maxsplit=1)[-1]
    raise RejectedError(
        "SIGNATURE",
        f"{role} names its result{'' if has_comment else f' {last}'}, and the name has no use here; leave it out (the "
        "direction of a key of order_by is ASC or DESC, and no comment follows it)",
    )


def _is_readable(df: DataFrame, expression: str) -> bool:
    """Return whether Spark reads a text as an expression, whether or not it has the columns."""
    try:
        with mute_query_log():
            df.select(sf.expr(expression)).schema  # noqa: B018 - Spark reads it now
    except ParseException:
        return False
    except PySparkException:
        return True
    return True


def _null_unless(df: DataFrame, expression: object, holds: Column, role: str) -> Column:
    """Return the column for what the user wrote where a condition holds, and NULL elsewhere.

    Spark evaluates a UDF and its arguments for all rows, whatever stands around it. So a use is guarded within.
    """
    if isinstance(expression, UseMember):
        return _null_unless(df, expression.use, holds, role).getField(expression.member)
    if isinstance(expression, Use):
        return _column_of_use(df, expression, role, holds)
    return sf.when(holds, column_of(df, expression, role))


def _column_of_use(df: DataFrame, use: Use, role: str, holds: Column | None = None) -> Column:
    """Return the result of a scalar function as a column: a UDF of Spark, which is a trip to Python of its own.

    With a condition, the function gets the rows where it holds.

    Raises:
        RejectedError: SIGNATURE for table functions, functions whose type depends on the arguments, and functions
            that are not deterministic, since Spark may compute the column more than once.
    """
    from foldflight.spark.scalar import spark_udf  # that module resolves its arguments with this one

    if not use.function.deterministic:
        raise RejectedError(
            "SIGNATURE",
            f"{role} is a use of {use.function.name}, which is not deterministic; add it as a column first: "
            f"with_columns(df, name={use!r})",
            function=use.function.name,
        )
    roles = [f"the argument {text_of(each)!r} of {use.function.name}" for each in use.arguments]
    if holds is None:
        arguments = [column_of(df, each, role) for each, role in zip(use.arguments, roles, strict=True)]
    else:
        arguments = [_null_unless(df, each, holds, role) for each, role in zip(use.arguments, roles, strict=True)]
        arguments.insert(0, holds)
    udf = spark_udf(use.function, use.transport, use.literals, guarded=holds is not None)
    column: Column = udf(*arguments)
    return column


def sort_key(df: DataFrame, key: OrderKey) -> OrderKey:
    """Return a key of an order with the name and the direction of a column such as PySpark's `desc("at")`.

    PySpark shows both only in the text of such a column, and a text does not tell an expression for certain.

    Raises:
        RejectedError: SIGNATURE, for an expression with a direction.
    """
    text = text_of(key.column)
    if not isinstance(key.column, Column) or text in df.columns:
        return key
    sorted_by = OrderKey.of(text)
    if sorted_by.column == text:
        return key
    if sorted_by.column not in df.columns:
        raise RejectedError(
            "SIGNATURE",
            f"the order {text!r} has PySpark's asc() or desc(), and {sorted_by.column} is not the name of a column of "
            'the input; write it as text with its direction, as in "a + b DESC"',
        )
    return sorted_by


def key_name(df: DataFrame, expression: object, key: Column | str) -> str:
    """Return the name of a key in the result: the column's name, the alias, or the text of the expression."""
    if isinstance(expression, str) and expression in df.columns:
        return expression
    return _only_name(df, key_column(key), f"the key {text_of(expression)!r}")


def _only_name(df: DataFrame, column: Column, role: str) -> str:
    """Return Spark's name for a column. Raises RejectedError SCHEMA_MISMATCH unless it is exactly one column."""
    with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot resolve {role}"):
        names: list[str] = df.select(column).columns
    if len(names) != 1:
        raise RejectedError("SCHEMA_MISMATCH", f"{role} is {len(names)} columns ({', '.join(names)}); give one")
    return names[0]


def kind_of(df: DataFrame, expression: str | Column | None, meanings: Mapping[str, str] | None) -> Column | None:
    """Return the column of row kinds, or None if rows have no kinds.

    Args:
        df: The input.
        expression: The user's text or Column.
        meanings: The row kind for each of its values; None if the values are row kinds.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if the column is missing, has no texts and no meanings, or if a meaning is not a
            row kind; SIGNATURE for meanings without a column; CANNOT_RETRACT for rows with several columns of kinds.
    """
    if expression is None:
        if meanings is not None:
            raise RejectedError("SIGNATURE", "row_kinds maps the values of row_kind; give row_kind as well")
        return None
    role = f"the row kind {text_of(expression)!r}"
    kind = column_of(df, expression, role)
    refuse_several(df)
    with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot resolve {role}"):
        type_ = df.select(kind).schema[0].dataType
    if meanings is not None:
        if not isinstance(meanings, Mapping):
            raise RejectedError(
                "SIGNATURE", f"row_kinds maps values of {role} to kinds, as in {{'c': '+I'}}, and is {meanings!r}"
            )
        return _kinds_of_codes(kind, meanings, role)
    if not isinstance(type_, st.StringType):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{role} is {type_.simpleString()}, and row kinds are texts ({_KINDS}); map its values to "
            "row kinds: row_kinds={...: '+I', ...: '-D'}"
            + (f"; {hint}" if isinstance(expression, str) and (hint := hint_for_columns([expression])) else ""),
        )
    refuse_updates(df, kind)
    return kind


def _kinds_of_codes(kind: Column, meanings: Mapping[str, str], role: str) -> Column:
    """Return a column of row kinds for a column of codes. The query fails at a code without a meaning."""
    code = kind.cast("string")
    letter = sf.when(sf.lit(False), sf.lit(""))
    for code_value, meaning in meanings.items():
        letter = letter.when(code == sf.lit(code_value), sf.lit(RowKind.parse(meaning).short))
    code_text = sf.coalesce(sf.concat(sf.lit("'"), code, sf.lit("'")), sf.lit("NULL"))
    mapped_codes = ", ".join(map(repr, meanings))
    wrong = raise_error(
        "SCHEMA_MISMATCH", f"{role} is ", code_text, f", and row_kinds maps only {mapped_codes}; add it there"
    )
    return letter.otherwise(wrong)


def _kind_number(kind: Column) -> Column:
    """Return a row kind as int8. A text that is not a row kind fails the query with an error that names it."""
    number = sf.when(sf.lit(False), sf.lit(0))
    for each in RowKind:
        number = number.when(kind.isin(each.short, each.name), sf.lit(int(each)))
    # A wrong format of the source can give a text of any length.
    code_text = sf.coalesce(sf.substring(kind.cast("string"), 1, _KIND_CHARACTERS), sf.lit("NULL"))
    remedy = "; map other values of the column row_kind= to them: row_kinds={'c': '+I', ...}"
    wrong = raise_error(
        "SCHEMA_MISMATCH", code_text, f" is no row kind; the kinds are {_KINDS}{remedy}", hint_for_code(kind)
    )
    return number.otherwise(wrong).cast("tinyint")
