"""Spark's types of arguments, keys, results and dead letters: which are refused, and which results keep."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa
from pyspark.sql import types as st

from foldflight.engine.query.blocks import without_nullability
from foldflight.engine.query.layout import KIND, REAL, QueryLayout
from foldflight.errors import RejectedError
from foldflight.exchange.frames import FunctionInfo
from foldflight.spark.storage_types import result_storage_type
from foldflight.spark.versions.types import (
    SPATIAL,
    UNCOMPARABLE,
    arrow_type,
    collates_by_bytes,
    nullable,
    spark_type,
    type_named,
)

_COMPARING: Final = frozenset({"min", "max"})
"""The built-in functions that compare their argument."""

_OF_MONTHS: Final = frozenset({"count", "sum", "avg", "min", "max", "first", "last"})
"""The built-in functions that take intervals of years and months, of which they get the months."""

_COLLATE: Final = re.compile(r"\s+COLLATE\s+[\w.`]+\s*$", re.IGNORECASE)
# A column, or a call without calls in it.
_OPERAND: Final = re.compile(r"[\w.`]+(\([^()]*\))?")


def arrow_fields(schema: st.StructType, roles: Sequence[str], *, are_passed: bool = True) -> pa.Schema:
    """Return the Arrow schema of rows in an exchange: all fields are nullable, timestamps with zone are in UTC.

    Args:
        schema: Spark's schema of the rows.
        roles: The role of each column, for errors. Internal columns, whose types are always valid, have no role.
        are_passed: Whether the rows are certainly passed to Python. Otherwise `check_passed` is called if they are.

    Raises:
        RejectedError: SCHEMA_MISMATCH, for a type that cannot be converted to Python.
    """
    if are_passed:
        check_passed(schema, roles)
    fields = []
    own = (KIND, REAL)
    remaining_roles = iter(roles)
    for column in schema:
        role = "" if column.name in own else next(remaining_roles)
        try:
            type_ = arrow_type(column.dataType)
        except RejectedError as error:
            raise _unsupported_type(
                role, column.dataType, "cannot be passed to Python; cast it in the query, for example to STRING"
            ) from error
        fields.append(pa.field(column.name, without_nullability(type_)))
    return pa.schema(fields)


def check_passed(schema: st.StructType, roles: Sequence[str]) -> None:
    """Refuse columns that Spark does not pass to Python, though it has an Arrow type for them.

    Args:
        schema: As for `arrow_fields`.
        roles: As for `arrow_fields`.

    Raises:
        RejectedError: SCHEMA_MISMATCH.
    """
    columns = [column for column in schema if column.name not in (KIND, REAL)]
    for column, role in zip(columns, roles, strict=True):
        if (repeated_name := _repeated_field(column.dataType)) is not None:
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{role} has a STRUCT with two fields named {repeated_name!r}, which Spark does not pass to "
                "Python; give its fields different names, as in CAST(s AS STRUCT<first: BIGINT, second: BIGINT>)",
            )


def check_keys(schema: st.StructType, names: Sequence[str], *, is_order: bool = False) -> None:
    """Refuse keys that cannot be grouped by, or an order that cannot be compared.

    Args:
        schema: The columns.
        names: The user's names of the columns.
        is_order: Whether they are the order of rows.

    Raises:
        RejectedError: SCHEMA_MISMATCH.
    """
    for column, name in zip(schema, names, strict=False):
        kind, verb = ("order", "order") if is_order else ("key", "group")
        role, cannot = f"the {kind} {name!r}", f"cannot be {'an order' if is_order else 'a key'}"
        if _contains(column.dataType, UNCOMPARABLE):
            raise _unsupported_type(
                role,
                column.dataType,
                f"{cannot}, because its values cannot be compared; {verb} by {_comparable_of(column.dataType)}",
            )
        if is_collated(column.dataType):
            raise _unsupported_type(
                role,
                column.dataType,
                f"{cannot}, because it does not compare texts by their bytes; {verb} by {_by_bytes(name)}",
            )


def _comparable_of(type_: st.DataType) -> str:
    """Return what to compare instead of values that cannot be compared."""
    return "its ST_AsBinary" if _contains(type_, SPATIAL) else "a part of it, or its text"


def check_compared(
    function: str,
    arguments: Sequence[tuple[str, st.DataType]],
    order: Sequence[tuple[str, st.DataType]],
    *,
    is_distinct: bool,
    user_name: str = "",
) -> None:
    """Refuse a call that compares values which Spark compares in another way, or cannot compare.

    Functions in Python see texts, which they compare by their bytes, and not collations. Intervals of years and months
    are for some built-in functions only.

    Args:
        function: The function's name.
        arguments: The user's text and Spark's type of each argument.
        order: The same of each key of the order.
        is_distinct: Whether the call has DISTINCT.
        user_name: The user's name of the function, if it is another one.

    Raises:
        RejectedError: SCHEMA_MISMATCH.
    """
    for text, type_ in arguments:
        if isinstance(type_, st.YearMonthIntervalType) and function not in _OF_MONTHS:
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{user_name or function} takes {text!r}, which is {type_.simpleString()}, and Spark does not pass it "
                f"to Python; give its months: CAST(CAST({text} AS INTERVAL MONTH) AS INT)",
                function=function,
            )
    compares = function in _COMPARING
    by = "DISTINCT" if is_distinct else function
    compared_columns = [(text, type_, by) for text, type_ in arguments if is_distinct or compares]
    for text, type_, how in (*compared_columns, *((text, type_, "its order") for text, type_ in order)):
        what = f"{user_name or function} takes {text!r}, which is {type_.simpleString()}, and {how}"
        without_order = (type_named("VariantType"), *(SPATIAL if how == "its order" else ()))
        if _contains(type_, UNCOMPARABLE if compares else without_order):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{what} cannot compare such values; give {_comparable_of(type_)}",
                function=function,
            )
        if is_collated(type_):
            raise RejectedError(
                "SCHEMA_MISMATCH", f"{what} compares texts by their bytes; write {_by_bytes(text)}", function=function
            )


def _by_bytes(text: str) -> str:
    """Return what to write in place of a text with a collation."""
    while (shorter := _COLLATE.sub("", _strip_parentheses(text))) != text:
        text = shorter
    text = text if _OPERAND.fullmatch(text) else f"({text})"
    return f"lower({text} COLLATE UTF8_BINARY) to ignore the case, or {text} COLLATE UTF8_BINARY"


def _strip_parentheses(text: str) -> str:
    """Return a text without the parentheses around the whole of it."""
    text = text.strip()
    depths = list(accumulate((each == "(") - (each == ")") for each in text))
    return text[1:-1] if text.startswith("(") and 0 not in depths[:-1] else text


def is_collated(type_: st.DataType) -> bool:
    """Return whether values of a type are texts, or have texts in them, that are not compared by their bytes."""
    if isinstance(type_, st.StringType):
        return not collates_by_bytes(type_)
    return any(map(is_collated, _inner(type_)))


def equal_by(column: st.StructField) -> str:
    """Return SQL that is equal for exactly the equal values of a column, and may partition a window.

    NULL equals NULL, all NaN values are equal, and -0.0 equals 0.0; texts are compared by their bytes.
    """
    name, type_ = column.name, column.dataType
    if isinstance(type_, FLOATING):
        # Sail does not do it by itself.
        sql = type_.simpleString()
        return f"nanvl({name}, CAST('NaN' AS {sql})) + CAST(0 AS {sql})"
    return _comparable(name, type_)


FLOATING: Final = (st.FloatType, st.DoubleType)


def is_grouped_as_it_is(type_: st.DataType) -> bool:
    """Return whether Spark aggregates by a hash of `equal_by` a column of a type, and returns a value of the group."""
    if isinstance(type_, FLOATING):
        return True
    unlike = (*UNCOMPARABLE, *FLOATING, st.UserDefinedType)
    return not _contains(type_, unlike) and not is_collated(type_)


def _comparable(sql: str, type_: st.DataType, depth: int = 0) -> str:
    """Return the SQL of what Spark compares: maps as sorted entries, because JSON would cut off microseconds."""
    if not (_contains(type_, UNCOMPARABLE) or is_collated(type_)):
        return sql
    item = f"item_{depth}"
    if isinstance(type_, st.StringType):
        return f"{sql} COLLATE UTF8_BINARY"
    if isinstance(type_, st.ArrayType):
        return f"transform({sql}, {item} -> {_comparable(item, type_.elementType, depth + 1)})"
    if isinstance(type_, st.MapType):
        key = _comparable(f"{item}.key", type_.keyType, depth + 1)
        value = _comparable(f"{item}.value", type_.valueType, depth + 1)
        return f"array_sort(transform(map_entries({sql}), {item} -> struct({key} AS k, {value} AS v)))"
    if isinstance(type_, st.StructType):
        quoted_names = [each.name.replace("`", "``") for each in type_]
        fields = (
            _comparable(f"{sql}.`{name}`", each.dataType, depth) for name, each in zip(quoted_names, type_, strict=True)
        )
        aliased_fields = ", ".join(f"{field} AS f{at}" for at, field in enumerate(fields))
        return f"if({sql} IS NULL, NULL, struct({aliased_fields}))"
    if type_.typeName() in ("geometry", "geography"):
        return f"st_asbinary({sql})"
    return f"to_json(struct({sql} AS v))"


def result_type(info: FunctionInfo, argument_types: Iterable[st.DataType], type_: pa.DataType) -> st.DataType:
    """Return Spark's type of a result.

    Several types of Spark have the same Arrow type, such as INTERVAL DAY and INTERVAL DAY TO SECOND, texts of all
    collations, and VARIANT and a STRUCT. A function such as `max` may return the type of an argument; the result then
    keeps Spark's type of this argument.

    Args:
        info: The function.
        argument_types: Spark's types of its arguments.
        type_: The storage type of the result.
    """
    if info.result_type is not None:
        return spark_type(type_)
    argument_types = list(argument_types)
    intervals = [
        each for each in argument_types if isinstance(each, (st.YearMonthIntervalType, st.DayTimeIntervalType))
    ]
    if intervals and info.name == "avg":  # it has smaller parts than INTERVAL DAY, for example
        return type(intervals[0])()
    if intervals and isinstance(intervals[0], st.YearMonthIntervalType):
        return intervals[0]
    own = {
        result_storage_type(without_nullability(arrow_type(each))): nullable(each) for each in reversed(argument_types)
    }
    full_type = _with_own(type_, own)
    check_returned([(f"the result of {info.name}", full_type)])
    return full_type


def check_returned(columns: Iterable[tuple[str, st.DataType]]) -> None:
    """Refuse columns that Python would return, and whose values Spark does not take from there.

    Args:
        columns: What each one is, for errors, and its type.

    Raises:
        RejectedError: SCHEMA_MISMATCH.
    """
    for what, type_ in columns:
        if _contains(type_, SPATIAL):
            raise _unsupported_type(
                what,
                type_,
                "Spark does not take from Python; give ST_AsBinary of it, and make it again with ST_GeomFromWKB or "
                "ST_GeogFromWKB",
            )


def check_udf(type_: st.DataType, function: str) -> None:
    """Refuse a type that Spark does not take from a UDF, but only from a function over a partition.

    Raises:
        RejectedError: SCHEMA_MISMATCH.
    """
    if _contains(type_, (type_named("TimeType"),)) and "time(6)" not in type_.simpleString():
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{function} returns {type_.simpleString()}, which Spark takes from a UDF as time(6) only; write "
            "CAST(... AS TIME(6)) for its argument",
            function=function,
        )


def _with_own(type_: pa.DataType, own: Mapping[pa.DataType | None, st.DataType]) -> st.DataType:
    if type_ in own:
        return own[type_]
    if pa.types.is_list(type_):
        return st.ArrayType(_with_own(type_.value_type, own))
    if pa.types.is_map(type_):
        return st.MapType(_with_own(type_.key_type, own), _with_own(type_.item_type, own))
    if pa.types.is_struct(type_):
        return st.StructType([st.StructField(each.name, _with_own(each.type, own)) for each in type_])
    return spark_type(type_)


def _repeated_field(type_: st.DataType) -> str | None:
    """Return a name that several fields of a struct have, at any depth."""
    if isinstance(type_, st.StructType):
        names = type_.fieldNames()
        repeated_name = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if repeated_name is not None:
            return repeated_name
    return next((each for each in map(_repeated_field, _inner(type_)) if each is not None), None)


def _contains(type_: st.DataType, classes: tuple[type[st.DataType], ...]) -> bool:
    return isinstance(type_, classes) or any(_contains(each, classes) for each in _inner(type_))


def _inner(type_: st.DataType) -> list[st.DataType]:
    """Return the types of the members of a struct, or of the elements of an array or map."""
    if isinstance(type_, st.StructType):
        return [each.dataType for each in type_]
    if isinstance(type_, st.ArrayType):
        return [type_.elementType]
    return [type_.keyType, type_.valueType] if isinstance(type_, st.MapType) else []


def _unsupported_type(role: str, type_: st.DataType, reason: str) -> RejectedError:
    return RejectedError("SCHEMA_MISMATCH", f"{role} is {type_.simpleString()}, which {reason}")


def letter_type(
    layout: QueryLayout, key_types: Sequence[st.DataType], column_types: Sequence[st.DataType]
) -> st.StructType:
    """Return Spark's type of a query's dead letters. Keys and columns keep their types in the input."""
    types = {
        "key": list(zip(layout.names, key_types, strict=True)),
        "row": list(zip(layout.display_names, column_types, strict=True)),
    }
    check_returned((f"{name} of a dead letter", type_) for name, type_ in (*types["key"], *types["row"]))
    members = []
    for name in (field.name for field in layout.letter):
        fields = [st.StructField(*each) for each in types.get(name, ())]
        members.append(st.StructField(name, st.StructType(fields) if fields else st.StringType()))
    return st.StructType(members)
