"""The columns of a query: what the user wrote, resolved by Spark, under names that cannot collide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_type

from foldflight.client import Aggregate
from foldflight.engine.convert import without_nullability
from foldflight.engine.layout import KIND, REAL, SLOT
from foldflight.errors import RejectedError
from foldflight.functions import Call, RowKind

__all__ = ["Columns", "arrow_fields", "check_keys", "column_named", "column_of", "key_name", "kind_of", "rejecting"]

_KINDS = ", ".join(each.short for each in RowKind)
_UNGROUPABLE = (st.MapType, st.VariantType, st.CalendarIntervalType)


@dataclass
class Columns:
    """Collects the columns of a query and resolves them together.

    Args:
        df: The input.
    """

    df: DataFrame
    keys: list[Column] = field(default_factory=list)
    kind: Column | None = None
    _found: dict[tuple[str, object], tuple[str, Column]] = field(default_factory=dict)  # what was written: shown as, is
    _held: list[object] = field(default_factory=list)

    def argument(self, written: object) -> str:
        """Return the name of the chunk's column that holds an argument; equal texts share one."""
        return self._add("", written, column_of(self.df, written))

    def condition(self, written: object) -> str:
        """Return the name of the chunk's column that holds a condition."""
        return self._add("where ", written, column_of(self.df, written, is_condition=True))

    def _add(self, role: str, written: object, column: Column) -> str:
        # Columns are compared by identity, for their `==` makes an expression; keeping them keeps the identity theirs.
        self._held.append(written)
        key = (role, written if isinstance(written, str) else id(written))
        if key not in self._found:
            # Errors show rows under these names, so they are what the user wrote.
            text = written if isinstance(written, str) else self._shown_as(column)
            taken = {SLOT, KIND, *self.shown}
            names = (role + text + suffix for suffix in chain([""], (f" ({number})" for number in count(2))))
            self._found[key] = (next(name for name in names if name not in taken), column)
        return self._found[key][0]

    def _shown_as(self, column: Column) -> str:
        """Return the name that Spark gives a column in a result."""
        with rejecting("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the query"):
            name: str = self.df.select(column).columns[0]
        return name

    @property
    def shown(self) -> list[str]:
        """The names of arguments and conditions in chunks, in the order of `rows`."""
        return [name for name, _ in self._found.values()]

    def rows(self) -> DataFrame:
        """Return the input reduced to keys, kind, arguments and conditions, in that order.

        Raises:
            RejectedError: SCHEMA_MISMATCH, with Spark's message, when a column or expression cannot be resolved.
        """
        chosen = [column.alias(f"key_{place}") for place, column in enumerate(self.keys)]
        if self.kind is not None:
            chosen.append(_kind_number(self.kind).alias(KIND))
        chosen += [column.alias(f"column_{place}") for place, (_, column) in enumerate(self._found.values())]
        with rejecting("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the query"):
            rows = self.df.select(chosen or [sf.lit(True).alias(REAL)])
            rows.schema  # noqa: B018 - resolves the columns now: mistakes belong to this call, not to a later action
        return rows

    def calls(self, aggregates: Sequence[Aggregate]) -> tuple[Call, ...]:
        """Return the calls of aggregates over these columns."""
        return tuple(
            Call(
                each.function.name,
                tuple(self.argument(column) for column in each.columns),
                filter=None if each.condition is None else self.condition(each.condition),
                distinct=each.is_distinct,
                literals=each.literals,
            )
            for each in aggregates
        )


@contextmanager
def rejecting(code: str, what: str) -> Iterator[None]:
    """Turn what Spark refuses to resolve into a RejectedError: what it was, and Spark's message."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise RejectedError(code, f"{what}: {(error.getMessage() or str(error)).strip()}") from error


def column_named(name: str) -> Column:
    """Return the column of exactly this name, whatever characters are in it."""
    return sf.col("`" + name.replace("`", "``") + "`")


def column_of(df: DataFrame, written: object, *, is_condition: bool = False) -> Column:
    """Return the column that a text or Column names: a column of `df` if there is one of that name, else an expression.

    Raises:
        RejectedError: SIGNATURE, for what is neither text nor Column.
    """
    if isinstance(written, Column):
        return written
    if not isinstance(written, str):
        what = "a condition" if is_condition else "an argument"
        raise RejectedError(
            "SIGNATURE",
            f"{written!r} is no column; {what} is a column name, a SQL expression, or a PySpark Column "
            "(for a constant write F.lit(...), or a direct argument by name)",
        )
    if written in df.columns:
        return column_named(written)
    return sf.expr(written)


def key_name(df: DataFrame, written: object, column: Column) -> str:
    """Return the name of a key in the result: the column's, the alias, or the text of the expression."""
    if isinstance(written, str) and written in df.columns:
        return written
    with rejecting("SCHEMA_MISMATCH", f"Spark cannot resolve the key {written!r}"):
        name: str = df.select(column).columns[0]
    return name


def kind_of(df: DataFrame, written: str | Column | None, meanings: Mapping[str, str] | None) -> Column | None:
    """Return the column of row kinds; None without one.

    Args:
        df: The input.
        written: What the user wrote.
        meanings: What its values mean, where they are not kinds themselves.

    Raises:
        RejectedError: SCHEMA_MISMATCH, when the column is not there, or holds no texts and has no meanings, or when a
            meaning is no row kind; SIGNATURE for meanings without a column.
    """
    if written is None:
        if meanings is not None:
            raise RejectedError("SIGNATURE", "row_kinds says what the values of row_kind mean; give row_kind as well")
        return None
    kind = column_of(df, written)
    if meanings is not None:
        return _translated(kind, meanings)
    with rejecting("SCHEMA_MISMATCH", f"Spark cannot resolve the row kind {written!r}"):
        type_ = df.select(kind).schema[0].dataType
    if not isinstance(type_, st.StringType):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the row kind {written!r} is {type_.simpleString()}, and kinds are texts ({_KINDS}); say what its values "
            "mean: row_kinds={...: '+I', ...: '-D'}",
        )
    return kind


def _translated(kind: Column, meanings: Mapping[str, str]) -> Column:
    """Return a column of row kinds from one of other codes; a code without a meaning stays, and is refused later."""
    code = kind.cast("string")
    known = code
    for written, meaning in meanings.items():
        known = sf.when(code == sf.lit(written), sf.lit(RowKind.parse(meaning).short)).otherwise(known)
    return known


def _kind_number(kind: Column) -> Column:
    """Return a row kind as int8; a text that names no kind fails the query with its value."""
    number = sf.when(sf.lit(False), sf.lit(0))
    for each in RowKind:
        number = number.when(kind.isin(each.short, each.name), sf.lit(int(each)))
    message = sf.concat(sf.lit("SCHEMA_MISMATCH: "), sf.coalesce(kind.cast("string"), sf.lit("NULL")))
    wrong = sf.raise_error(sf.concat(message, sf.lit(f" is no row kind; the kinds are {_KINDS}")))
    return number.otherwise(wrong).cast("tinyint")


def arrow_fields(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema of rows as an exchange sees it: all nullable, times with zone in UTC.

    Raises:
        RejectedError: SCHEMA_MISMATCH, for a type that cannot reach Python.
    """
    fields = []
    for column in schema:
        try:
            type_ = to_arrow_type(column.dataType, timezone="UTC")
        except Exception as error:
            raise _unsupported(column, "is given to a function", "cast it in the query") from error
        fields.append(pa.field(column.name, without_nullability(type_)))
    return pa.schema(fields)


def check_keys(schema: st.StructType, names: Sequence[str]) -> None:
    """Refuse keys that cannot be grouped by.

    Raises:
        RejectedError: SCHEMA_MISMATCH.
    """
    for column, name in zip(schema, names, strict=False):
        if _contains(column.dataType, _UNGROUPABLE):
            raise _unsupported(_renamed(column, name), "is a key", "group by parts of it, or by its text")
        if isinstance(column.dataType, st.StringType) and column.dataType.collation != "UTF8_BINARY":
            raise _unsupported(
                _renamed(column, name),
                "is a key",
                "group by collation_key(...) or by lower(...), which compare bytes",
            )


def _renamed(column: st.StructField, name: str) -> st.StructField:
    """Return the field under the user's name."""
    return st.StructField(name, column.dataType)


def _contains(type_: st.DataType, wanted: tuple[type[st.DataType], ...]) -> bool:
    if isinstance(type_, st.StructType):
        return any(_contains(each.dataType, wanted) for each in type_)
    if isinstance(type_, st.ArrayType):
        return _contains(type_.elementType, wanted)
    return isinstance(type_, wanted)


def _unsupported(column: st.StructField, role: str, remedy: str) -> RejectedError:
    return RejectedError(
        "SCHEMA_MISMATCH",
        f"the column {column.name} {role}, and its type {column.dataType.simpleString()} does not allow that; {remedy}",
    )
