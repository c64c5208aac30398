"""The page of types: what annotations, SQL, Spark, Arrow and Python call each type, from the code's own tables."""

from __future__ import annotations

import pyarrow as pa

from foldflight.functions.types.serializer import annotated_scalars
from foldflight.functions.types.sql import can_widen, parse_type, spellings, sql_name
from foldflight.functions.types.vectors import is_vector

__all__ = ["TYPES", "spark_word", "types_page"]

_ZONED = pa.timestamp("us", tz="UTC")
# In the order of the page: the type, and the Python value of an argument.
TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "`bool`",
    pa.int8(): "`int`",
    pa.int16(): "`int`",
    pa.int32(): "`int`",
    pa.int64(): "`int`",
    pa.float32(): "`float`",
    pa.float64(): "`float`",
    pa.decimal128(38, 18): "`decimal.Decimal`",
    pa.string(): "`str`",
    pa.binary(): "`bytes`",
    pa.date32(): "`datetime.date`",
    pa.time64("us"): "`datetime.time`",
    pa.timestamp("us"): "naive `datetime.datetime`",
    _ZONED: "aware `datetime.datetime`, in UTC",
    pa.duration("us"): "`datetime.timedelta`",
    parse_type("VECTOR(3)"): "`numpy.ndarray` of float32, of the shape (3,)",
    parse_type("VECTOR(3, DOUBLE)"): "`numpy.ndarray` of float64, of the shape (3,)",
}
_SPARK = {"REAL": "FLOAT", "TIME": "TIME(6)"}

_PAGE = """\
# Types

This page is written by `docs/generate.py` from the code.

| annotation | SQL name in `input_types` and `result_type` | also written | Spark's name | Arrow | Python value |
|---|---|---|---|---|---|
{rows}

Write `Annotated[int, "INT"]` for a type that has no annotation of its own. Nested types are `list[T]` (`ARRAY<T>`),
`dict[K, V]` (`MAP<K, V>`), and a dataclass or named tuple (`STRUCT<...>`). A single capital letter is a type
variable.

A method may change a list or dict that it gets as an argument: each row and each call has values of its own, embedded
and on a server. Such a method is interpreted, not compiled.

## Vectors

`VECTOR(n)` has n floats of 32 bits, as in Databend and pgvector, and `VECTOR(n, DOUBLE)` n floats of 64 bits, with n
from 1 to 65,536. Methods get a NumPy array, which is read-only
and a part of its chunk: copy what the accumulator keeps, or it keeps the memory of the whole chunk.
Results are arrays, lists or tuples of n numbers, which are rounded to the type's width once. Type checkers
refuse `Vector[384]`, because it has a number: for them, name an alias that means the same, such as
`Embedding: TypeAlias = Annotated[NDArray[np.float32], "VECTOR(384)"]`.
Scalar functions with `vectorised="numpy"` get and return n vectors as one array of the shape (n, 384), in which
rows that are NULL are masked.

In Spark a vector is an ARRAY<FLOAT> or ARRAY<DOUBLE>. A list of another length, or with a NULL item, is the error
[OVERFLOW](errors.md) with its column and row, and is never padded. A vector that is NULL is None. Columns of other
items, as ARRAY<DOUBLE> for `VECTOR(n)`, are refused when a query is planned: write `CAST(v AS ARRAY<FLOAT>)`.

An attribute of an accumulator has exactly the annotated type: an array of another shape or of other items is an error
when the state is made. Annotate sums as `Vector[n, np.float64]`, because a sum of 32-bit floats is rounded at each row.
A sum of floats depends on the order of its rows, and a retracted row leaves a residue as large as this rounding.
In the memory of a compiled class, an accumulator with a sum of n 64-bit floats and a count has 8 n bytes and at most 64
more.

## Timestamps

*The word TIMESTAMP.* In `input_types`, `result_type`, `state_type` and signatures it is SQL's: without a time zone.
`TIMESTAMPTZ` has one. In statements on Spark (`CREATE AGGREGATE`, `CREATE FUNCTION`, `CAST`) it is Spark's: TIMESTAMP
has a zone, and TIMESTAMP_NTZ has none. `TIMESTAMP_NTZ` and `TIMESTAMP_LTZ` mean the same everywhere.

*`datetime` takes both.* An argument annotated as `datetime` takes columns of both kinds. With TIMESTAMP of Spark the
values are aware, always in UTC and never in the session's zone, so results do not depend on the session; with
TIMESTAMP_NTZ they are naive. Each other `datetime` in the annotations of the accumulator and of the result is then of
the same kind. One call has one kind: cast a column in the query if two arguments differ. A class that names the type
(`Annotated[datetime, "TIMESTAMPTZ"]`, or `input_types`) takes this type only.

*Nanoseconds.* Python's `time`, `datetime` and `timedelta` have microseconds. A value with nanoseconds, as of TIME(9) or
of an Arrow column in `ns`, can be a key and be counted. As an argument that becomes a Python value it is the error
[SCHEMA_MISMATCH](errors.md); cast it in the query, as in `CAST(t AS TIME(6))`. Nothing is cut off.
TIMESTAMP_NTZ(9) and TIMESTAMP_LTZ(9), a preview of Spark 4.3, have no type in PySpark. A DataFrame or a statement with
such a column is refused (SCHEMA_MISMATCH), whether a call uses it or not: cast it where the DataFrame is made.

Python does not compare naive and aware datetimes: begin an accumulator with None, not with `datetime.min`.

## Decimals

`Decimal` without more is DECIMAL(38, 18). A decimal of the accumulator has the scale of its type, so as a text it has
18 digits behind the point: `str(total)` is `924.150000000000000000`, where the class alone in Python has `924.15`.
Annotate it with the scale that you want to see, `total: Annotated[Decimal, "DECIMAL(18, 2)"]`; the numbers are equal.

## NULL and NaN

NULL is None, as argument and as result; `skip_nulls=True` leaves out rows with a NULL argument. NaN is a number of
REAL and DOUBLE, never NULL, and a result NaN of an integer type is an error. In vectorised methods NULLs are masked.

## Results

Results are cast as Spark's CAST does in ANSI mode: BIGINT cuts off fractions (18.5 is 18), DECIMAL rounds half up. A
value outside the range of the type is the error [OVERFLOW](errors.md), as is a finite number too large for REAL.

## Types that only Spark has

Several types of Spark are one type in Python: INTERVAL DAY and all other day-time intervals, texts of every
collation, and VARIANT, which is a STRUCT of two BINARY members. A function whose result has the type of an argument,
as `min`, `max`, `first` and `last` have, keeps Spark's own type: `max` of INTERVAL DAY is INTERVAL DAY. `string_agg`
gives STRING without a collation. UDFs (scalar functions, and aggregates that are folded from lists) return TIME as
TIME(6) only.

Python compares texts by their bytes. `min`, `max`, DISTINCT, an ORDER BY and a key over a text with another collation
are therefore refused: write `lower(c COLLATE UTF8_BINARY)` to ignore the case, or `c COLLATE UTF8_BINARY`. Other
functions get such a text like any other. `min`, `max` and DISTINCT over VARIANT are refused, because its values have
no order.

GEOMETRY and GEOGRAPHY go to Python as a STRUCT of `srid` and `wkb`, and Spark does not take them back. They are
refused (SCHEMA_MISMATCH) as results, as of `first`, as columns of rows that come from Python, as of `over` and
`join_lateral`, and, because they have no order, as keys, in an order, and by `min` and `max`. Give `ST_AsBinary(g)`,
and make the value again with `ST_GeomFromWKB`.

INTERVAL YEAR, MONTH and YEAR TO MONTH can be keys and arguments of `count`, `sum`, `avg`, `min`, `max`, `first` and
`last`, with Spark's results. Other functions do not get them; give their months: `CAST(CAST(i AS INTERVAL MONTH) AS
INT)`. Calendar intervals, which `make_interval` gives, cannot be passed to Python at all: cast them in the query.

## New types of Spark, and where they can be

| type | key | argument | result | table of `write_table` |
|---|---|---|---|---|
| `TIME(0)` to `TIME(6)` | yes | yes | yes; of a UDF as TIME(6) | DuckDB; the others refuse it |
| `TIME(7)` to `TIME(9)` | yes | of `count`; others refuse a value with nanoseconds | as arguments | DuckDB |
| `TIMESTAMP_NTZ(n)`, `TIMESTAMP_LTZ(n)`, n from 7 to 9 | refused | refused | refused | refused |
| `GEOMETRY`, `GEOGRAPHY` | refused | yes, as a STRUCT; no order, `min`, `max` | refused | refused |

It is the same in batches and in streams. A table of Spark's catalogue takes what its format takes. Spark 4.3 has a
setting for TIME, `spark.sql.timeType.enabled=true`. Without it, aggregates by TIME are refused (UNSUPPORTED_TIME_TYPE),
as Spark's own `groupBy` is, and so are casts.

## Which column fits which argument

A column is widened where no value changes (and, as in SQL, integers are rounded to DOUBLE). Integers and decimals fit
every DECIMAL, and each value is checked: one with too many digits before or behind the point is the error
[OVERFLOW](errors.md), which names its row. A DATE as a TIMESTAMP is midnight, without a zone. All else needs a CAST in
the query.

| column | fits arguments of |
|---|---|
{widenings}
"""


def spark_word(type_: pa.DataType) -> str:
    """Return Spark's name of a type."""
    if is_vector(type_):  # Spark has arrays, whose length is checked
        return f"ARRAY<{spark_word(type_.value_type)}>"
    word = sql_name(type_, zoneless="TIMESTAMP_NTZ", zoned="TIMESTAMP")
    return _SPARK.get(word, word).replace(", ", ",")


def types_page() -> str:
    """Return the page of types."""
    annotations: dict[pa.DataType, str] = {type_: f"`{each.__name__}`" for each, type_ in annotated_scalars().items()}
    annotations[_ZONED] = "`datetime`"
    annotations[parse_type("VECTOR(3)")] = "`Vector[3]`"
    annotations[parse_type("VECTOR(3, DOUBLE)")] = "`Vector[3, np.float64]`"
    rows = []
    for type_, value in TYPES.items():
        name = sql_name(type_)
        others = [each for each in spellings(type_) if each != name]
        annotation = annotations.get(type_, f'`Annotated[{value.strip("`")}, "{name}"]`')
        cells = (annotation, f"`{name}`", ", ".join(others), f"`{spark_word(type_)}`", f"`{type_}`", value)
        rows.append(f"| {' | '.join(cells)} |")
    widenings = []
    for type_ in TYPES:
        wider = [sql_name(each) for each in TYPES if each != type_ and can_widen(type_, each)]
        widenings.append(f"| {sql_name(type_)} | {', '.join([sql_name(type_), *wider])} |")
    return _PAGE.format(rows="\n".join(rows), widenings="\n".join(widenings))
