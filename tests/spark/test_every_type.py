"""Every built-in function over every type of Spark, beside Spark's own aggregate: the same rows and types, or refused.

A view has a column of each type. The calls that are taken are computed for all types in one query, in each plan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from foldflight import RejectedError, connect, udaf, udf
from foldflight.client import Functions
from foldflight.functions.registry import Registry
from foldflight.spark import group_by, over, register, sql, upserts, with_columns, with_schema
from foldflight.spark.errors import error_of
from tests.spark.test_stream import Stream
from tests.spark_sessions import since_spark


class Type(NamedTuple):
    """A type of Spark, with what may be computed of it.

    Args:
        sql: Its name; empty for what only an expression has.
        values: Five values, the first two equal; one value is all of them.
        can: `n` for numbers, `a` for sums, `b` for booleans, `s` for texts, `o` for an order, `d` for DISTINCT; `-` if
            values cannot be passed to Python, which refuses all calls.
    """

    sql: str
    values: tuple[str, ...]
    can: str = "od"


def type_of(name: str, values: str, can: str = "od") -> Type:
    """Return a type with the texts of values as literals of it."""
    return Type(name, tuple(f"{name}'{each}'" for each in values.split("|")), can)


def interval(units: str, values: str, can: str = "aod") -> Type:
    return Type(f"INTERVAL {units}", tuple(f"INTERVAL '{each}' {units}" for each in values.split("|")), can)


INTEGERS = {
    name: Type(name, ("5", "5", "-7", most, "0"), "naod")
    for name, most in {"TINYINT": "127", "SMALLINT": "32767", "INT": "2147483647", "BIGINT": "9007199254740993"}.items()
}
FLOATS = {
    name: Type(name, ("1.1", "1.1", "-0.0", f"CAST('NaN' AS {name})", f"CAST('Infinity' AS {name})"), "naod")
    for name in ("FLOAT", "DOUBLE")
}
DECIMALS = {
    f"DECIMAL({precision}, {scale})": Type(f"DECIMAL({precision}, {scale})", values, "naod")
    for precision, scale, values in [
        (4, 0, ("26", "26", "-9999", "7", "0")),
        (12, 4, ("26.5", "26.5", "-99999999.9999", "7", "0.0001")),
        (38, 0, ("26", "26", "-9999999999999999999999999999999999", "7", "0")),
        (38, 10, ("26.5", "26.5", "-9.0000000001", "7", "0")),
        (38, 38, ("0.25", "0.25", "-0.00000000000000000000000000000000000001", "0.2", "0")),
    ]
}
LETTERS = ("'b'", "'b'", "'A'", "'ä'", "''")
TEXTS = {
    **{name: Type(name, LETTERS, "sod") for name in ("STRING", "VARCHAR(5)", "CHAR(3)")},
    **{
        name: Type(name, ("'b'", "'B'", "'A'", "'ä'", "''"), "")
        for name in ("STRING COLLATE UTF8_LCASE", "STRING COLLATE UNICODE_CI")
    },
}
MOMENTS = "2026-01-02 03:04:05.678901|2026-01-02 03:04:05.678901|1969-12-31 23:59:59.999999|9999-12-30|1000-01-01"
TIMES = {
    "DATE": type_of("DATE", "2026-01-02|2026-01-02|1969-12-31|9999-12-31|0001-01-01"),
    "TIMESTAMP": type_of("TIMESTAMP", MOMENTS),
    "TIMESTAMP_NTZ": type_of("TIMESTAMP_NTZ", MOMENTS),
    "TIME(0)": Type(
        "TIME(0)", tuple(f"TIME'{each}'" for each in ("03:04:05", "03:04:05", "00:00:00", "23:59:59", "1:2:3"))
    ),
    "TIME(6)": Type("TIME(6)", tuple(f"TIME'03:04:05{each}'" for each in (".678901", ".678901", ".1", "", ".999999"))),
    **{f"INTERVAL {unit}": interval(unit, "2|2|-3|0|9") for unit in ("DAY", "HOUR", "MINUTE", "SECOND")},
    "INTERVAL DAY TO HOUR": interval("DAY TO HOUR", "2 1|2 1|-3 0|0 0|9 0"),
    "INTERVAL DAY TO SECOND": interval("DAY TO SECOND", "2 1:0:0.000001|2 1:0:0.000001|-3 0:0:0|0 0:0:0|9 0:0:0"),
    **{f"INTERVAL {unit}": interval(unit, "2|2|-3|0|9") for unit in ("YEAR", "MONTH")},
    "INTERVAL YEAR TO MONTH": interval("YEAR TO MONTH", "2-1|2-1|-3-0|0-0|9-0"),
    "INTERVAL": Type("", ("make_interval(0, 1, 0, 2)", "make_interval(0, 1, 0, 2)", "make_interval(1)"), "-"),
}
ONE, TWO = "INTERVAL '1' DAY", "INTERVAL '2' DAY"
NESTED = {
    "ARRAY<INT>": Type("ARRAY<INT>", ("array(2, 1)", "array(2, 1)", "array(2)", "array(3, NULL)", "array()")),
    "ARRAY<DECIMAL(10, 2)>": Type("ARRAY<DECIMAL(10, 2)>", ("array(2.5, 1)", "array(2.5, 1)", "array(2)", "array()")),
    "ARRAY<INTERVAL DAY>": Type("ARRAY<INTERVAL DAY>", (f"array({TWO})", f"array({TWO})", f"array({ONE})", "array()")),
    "ARRAY<STRUCT<a: INT, b: STRING>>": Type(
        "ARRAY<STRUCT<a: INT, b: STRING>>",
        ("array(struct(1, 'x'))", "array(struct(1, 'x'))", "array(NULL)", "array()", "array(struct(NULL, 'y'))"),
    ),
    "ARRAY<STRING COLLATE UTF8_LCASE>": Type("ARRAY<STRING COLLATE UTF8_LCASE>", ("array('b')", "array('B')"), ""),
    "ARRAY<VARIANT>": Type("ARRAY<VARIANT>", ("array(parse_json('1'))", "array(parse_json('1'))", "array(NULL)"), ""),
    "STRUCT<a: INT, b: STRING>": Type(
        "STRUCT<a: INT, b: STRING>",
        ("struct(1, 'x')", "struct(1, 'x')", "struct(NULL, 'z')", "struct(2, NULL)", "struct(0, '')"),
    ),
    "STRUCT<at: TIMESTAMP, v: DOUBLE>": Type(
        "STRUCT<at: TIMESTAMP, v: DOUBLE>",
        (
            *["struct(TIMESTAMP'2026-01-02 03:04:05', 1.0)"] * 2,
            "struct(NULL, 2.0)",
            "struct(TIMESTAMP'2027-01-01', 1)",
        ),
    ),
    "STRUCT<d: INTERVAL DAY>": Type("STRUCT<d: INTERVAL DAY>", (f"struct({TWO})", f"struct({TWO})", f"struct({ONE})")),
    "STRUCT<t: TIME(6)>": Type("STRUCT<t: TIME(6)>", (*["struct(TIME'01:02:03')"] * 2, "struct(NULL)")),
    "STRUCT<s: STRING COLLATE UTF8_LCASE>": Type(
        "STRUCT<s: STRING COLLATE UTF8_LCASE>", ("struct('b')", "struct('B')"), ""
    ),
    "STRUCT<v: VARIANT, n: INT>": Type(
        "STRUCT<v: VARIANT, n: INT>",
        ("struct(parse_json('1'), 1)", "struct(parse_json('1'), 1)", "struct(NULL, 1)"),
        "",
    ),
    "MAP<INT, STRING>": Type("MAP<INT, STRING>", ("map(1, 'x')", "map(1, 'x')", "map(2, NULL)", "map()"), "d"),
    "MAP<INT, INTERVAL DAY>": Type("MAP<INT, INTERVAL DAY>", (f"map(1, {TWO})", f"map(1, {TWO})", "map(2, NULL)"), "d"),
    "MAP<INT, VARIANT>": Type("MAP<INT, VARIANT>", (*["map(1, parse_json('1'))"] * 2, "map(2, NULL)", "map()"), ""),
    "VARIANT": Type(
        "VARIANT", tuple(f"parse_json('{each}')" for each in ('{"a": 1}', '{"a": 1}', "2", "null", '"x"')), ""
    ),
}
OTHERS = {
    "BOOLEAN": Type("BOOLEAN", ("true", "true", "false", "true", "false"), "bod"),
    "BINARY": Type("BINARY", ("X'02'", "X'02'", "X'ff00'", "X'00'", "X''")),
    "VOID": Type("", ("NULL",), "nabsod"),
    "STRUCT<VOID>": Type("", ("named_struct('n', NULL)",)),
    "ARRAY<VOID>": Type("", ("array()",)),
    "BIGINT of NULL": Type("BIGINT", ("NULL",), "naod"),
    "STRING of NULL": Type("STRING", ("NULL",), "sod"),
}
TYPES: dict[str, Type] = {**INTEGERS, **FLOATS, **DECIMALS, **TEXTS, **TIMES, **NESTED, **OTHERS}


class Use(NamedTuple):
    """A call of a built-in function.

    Args:
        needs: What a type must have, as in `Type.can`; empty if any type may be an argument.
        sql: The call in SQL, with `{f}` before the names of functions.
        build: The use in Python.
    """

    needs: str
    sql: str
    build: Callable[[Mapping[str, Any], str], Any]


def plain(name: str, needs: str = "") -> Use:
    return Use(needs, f"{{f}}{name}({{x}})", lambda f, x: f[name](x))


USES: dict[str, Use] = {
    **{name: plain(name) for name in ("count", "first", "last")},
    **{name: plain(name, "o") for name in ("min", "max")},
    **{name: plain(name, "a") for name in ("sum", "avg")},
    **{name: plain(name, "n") for name in ("stddev_samp", "stddev_pop", "var_samp", "var_pop", "stddev", "variance")},
    **{name: plain(name, "b") for name in ("bool_and", "bool_or")},
    "string_agg": Use("s", "{f}string_agg({x})", lambda f, x: f["string_agg"](x, delimiter="")),
    "max where": Use("o", "{f}max({x}) FILTER (WHERE i > 1)", lambda f, x: f["max"](x).where("i > 1")),
    "count distinct": Use("d", "{f}count(DISTINCT {x})", lambda f, x: f["count"](x).distinct()),
    "sum distinct": Use("a", "{f}sum(DISTINCT {x})", lambda f, x: f["sum"](x).distinct()),
}
ORDERED = {"first by": Use("", "min_by({x}, i)", lambda f, x: f["first"](x).order_by("i"))}

ALL = {**USES, **ORDERED}
FEW = {name: USES[name] for name in ("count", "first", "min", "max", "sum", "avg")}
BUILT_IN = ("count", "sum", "avg", "min", "max", "first", "last", "bool_and", "bool_or", "string_agg")
BUILT_IN += ("stddev_samp", "stddev_pop", "var_samp", "var_pop", "stddev", "variance")
CODEGEN = "spark.sql.codegen.factoryMode"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timeType.enabled": "true",
    CODEGEN: "NO_CODEGEN",  # compiling hundreds of expressions costs more than a few rows
}

LOST = ("TINYINT", "FLOAT", "DECIMAL(4, 0)", "DECIMAL(38, 38)", "STRING COLLATE UTF8_LCASE", "TIMESTAMP", "TIME(0)")
LOST += (
    "INTERVAL DAY",
    "INTERVAL YEAR",
    "ARRAY<INTERVAL DAY>",
    "MAP<INT, VARIANT>",
    "VARIANT",
    "STRUCT<a: INT, b: STRING>",
    "ARRAY<VOID>",
)

# Groups of several values and NULL, of one, of NULL only, and of two: the group, the place, and the value.
ROWS = [("a", 1, 0), ("a", 2, 1), ("a", 3, 2), ("a", 4, None), ("b", 5, 3), ("c", 6, None), ("d", 7, 4), ("d", 8, 3)]
ROWS_DDL = "k string, i int, at int"
COLUMNS = {name: f"c{place}" for place, name in enumerate(TYPES)}


def column(name: str) -> str:
    """Return the column of a type as an expression over the value's number `at`."""
    type_ = TYPES[name]
    if not type_.sql:
        return f"{type_.values[0]} AS {COLUMNS[name]}"
    values = [f"CAST({each} AS {type_.sql})" for each in type_.values]
    cases = " ".join(f"WHEN {place} THEN {each}" for place, each in enumerate(values))
    return f"CASE at {cases} WHEN NULL THEN {values[0]} END AS {COLUMNS[name]}"


PASSED = [name for name, type_ in TYPES.items() if type_.can != "-"]


def with_types(df: DataFrame, types: Iterable[str] = TYPES) -> DataFrame:
    """Return a DataFrame of `k, i, at` with a column of each type."""
    return df.selectExpr("k", "i", *map(column, types))


def calls_of(uses: Mapping[str, Use], types: Iterable[str] = TYPES) -> Iterator[tuple[str, str, Use]]:
    """Yield a name, the column and the use of each call that is taken."""
    for what, use in uses.items():
        for name in types:
            type_ = TYPES[name]
            if type_.can != "-" and set(use.needs) <= set(type_.can):
                yield f"{what} of {name}", COLUMNS[name], use


@pytest.fixture(scope="module")
def functions() -> Functions:
    """The built-in functions, also without their vectorised methods as `plain_...`."""
    registry = Registry()
    return connect([replace(registry[name], name=f"plain_{name}", compile=False) for name in BUILT_IN])


@pytest.fixture(scope="module")
def session(classic: Any) -> Iterator[Any]:
    """The classic session with SETTINGS."""
    before = {name: classic.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        classic.conf.set(name, value)
    yield classic
    for name, value in before.items():
        classic.conf.unset(name) if value is None else classic.conf.set(name, value)


@pytest.fixture(scope="module")
def table(session: Any) -> Iterator[DataFrame]:
    """A row for each of ROWS, with a column of each type; also the view `every_type`."""
    df = with_types(session.createDataFrame(ROWS, ROWS_DDL).coalesce(1)).cache()
    df.createOrReplaceTempView("every_type")
    yield df
    session.catalog.dropTempView("every_type")
    df.unpersist()


class Answer(NamedTuple):
    """The columns of a result: their types, and their values in the order of keys and places."""

    types: dict[str, str]
    values: dict[str, list[Any]]

    @classmethod
    def of(cls, df: DataFrame) -> Answer:
        types = {field.name: field.dataType.simpleString() for field in df.schema}
        keys = [name for name in ("k", "i") if name in types]
        # PySpark cannot read intervals of years and months.
        texts = {name: df[name].cast("string") for name, type_ in types.items() if MONTHS.search(type_)}
        df = df.withColumns(texts) if texts else df
        rows = sorted((row.asDict() for row in df.collect()), key=lambda row: [row[key] for key in keys])
        return cls(types, {name: [row[name] for row in rows] for name in types})

    def differences(self, theirs: Answer) -> dict[str, Any]:
        """Return the columns that differ from the columns of the same names."""
        return {
            name: (type_, self.values[name], theirs.types[name], theirs.values[name])
            for name, type_ in self.types.items()
            if type_ != theirs.types[name] or not all(map(same, self.values[name], theirs.values[name]))
        }


def same(ours: Any, theirs: Any) -> bool:
    """Return whether two values are the same. Sums of floats are exact, and Spark's have rounding errors."""
    if isinstance(ours, float) and isinstance(theirs, float) and math.isfinite(ours):
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9)
    return repr(ours) == repr(theirs)


MONTHS = re.compile("interval (year|month)")
Call = tuple[str, str, Use]
_answers: dict[tuple[str, ...], Answer] = {}


def of_spark(spark: Any, view: str, calls: Sequence[Call], window: str = "") -> Answer:
    """Return the answer of Spark's own aggregates, which is computed once."""
    key = (view, *(name for name, _, _ in calls), window)
    if key not in _answers:
        result = Answer({}, {})
        # Without compiled code, Spark gives wrong values for texts with a collation.
        for mode, is_collated in (("NO_CODEGEN", False), ("FALLBACK", True)):
            some = [each for each in calls if ("COLLATE" in each[0]) is is_collated]
            items = [f"{use.sql.format(f='', x=x)} {window} AS `{name}`" for name, x, use in some]
            spark.conf.set(CODEGEN, mode)
            keys, groups = ("k, i", "") if window else ("k", "GROUP BY k")
            part = Answer.of(spark.sql(f"SELECT {keys}, {', '.join(items)} FROM {view} {groups}"))
            result.types.update(part.types)
            result.values.update(part.values)
        spark.conf.set(CODEGEN, SETTINGS[CODEGEN])
        _answers[key] = result
    return _answers[key]


def test_every_built_in_function_is_here() -> None:
    """A new built-in function is added to the calls of these tests."""
    assert set(BUILT_IN) == set(Registry())
    assert all(any(name in what for what in USES) for name in BUILT_IN)


def test_groups_equal_those_of_spark(session: Any, functions: Functions) -> None:
    """The most common calls over the types that are most easily lost, in the `group_by` plan."""
    calls = list(calls_of(FEW, LOST))
    df = with_types(session.createDataFrame(ROWS, ROWS_DDL).coalesce(1), LOST)
    df.createOrReplaceTempView("few_types")
    ours = group_by(df, "k").agg(**{name: use.build(functions, x) for name, x, use in calls})
    assert Answer.of(ours).differences(of_spark(session, "few_types", calls)) == {}


def calls_by_prefix(functions: Functions, prefix: str) -> tuple[dict[str, Any], list[str]]:
    """Return the functions of this prefix by the names of built-in ones, and the types that they take.

    Only the built-in functions themselves take months, and are known to average days to seconds.
    """
    types = [name for name in TYPES if not (prefix and name.startswith("INTERVAL"))]
    return {name: functions[f"{prefix}{name}"] for name in BUILT_IN}, types


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["auto", "lists"])
def test_a_group_without_rows_has_the_value_of_spark(
    session: Any, table: DataFrame, functions: Functions, plan: str
) -> None:
    """One group without rows has the value of Spark's aggregate, in both plans."""
    table.where("i < 0").createOrReplaceTempView("no_rows")
    register(session, functions, {name: f"each_{name}" for name in BUILT_IN})
    calls = list(calls_of(FEW, [name for name in LOST if name != "TIME(0)"]))  # a UDF returns TIME(6) only
    items = ", ".join(f"{use.sql.format(f='each_', x=x)} AS `{name}`" for name, x, use in calls)
    theirs = ", ".join(f"{use.sql.format(f='', x=x)} AS `{name}`" for name, x, use in calls)
    ours = sql(session, f"SELECT {items} FROM no_rows", plan=plan)
    assert Answer.of(ours).differences(Answer.of(session.sql(f"SELECT {theirs} FROM no_rows"))) == {}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "plain_"])
def test_groups_of_all_calls_equal_those_of_spark(
    session: Any, table: DataFrame, functions: Functions, prefix: str
) -> None:
    """The `group_by` plan with all calls, also those with an order, DISTINCT and FILTER, vectorised and scalar."""
    f, types = calls_by_prefix(functions, prefix)
    ours = group_by(table, "k").agg(**{name: use.build(f, x) for name, x, use in calls_of(ALL, types)})
    assert Answer.of(ours).differences(of_spark(session, "every_type", list(calls_of(ALL)))) == {}


@pytest.mark.slow
def test_lists_equal_those_of_spark(session: Any, table: DataFrame, functions: Functions) -> None:
    """The `collect_list` plan with all calls, and all types but TIME(0), which a UDF returns as TIME(6) only."""
    register(session, functions, {name: f"each_{name}" for name in BUILT_IN})
    calls = list(calls_of(USES, [each for each in TYPES if each != "TIME(0)"]))
    texts = [use.sql.format(f="each_", x=x) for _, x, use in calls]
    # Our own delimiter is a comma, and Spark has none.
    texts = [text.replace(")", ", delimiter => '')") if "string_agg" in text else text for text in texts]
    items = ", ".join(f"{text} AS `{name}`" for text, (name, _, _) in zip(texts, calls, strict=True))
    ours = sql(session, f"SELECT k, {items} FROM every_type GROUP BY k", plan="lists")
    assert Answer.of(ours).differences(of_spark(session, "every_type", calls)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "plain_"])
def test_growing_frames_equal_those_of_spark(session: Any, table: DataFrame, functions: Functions, prefix: str) -> None:
    """OVER with frames that grow, vectorised and scalar."""
    f, types = calls_by_prefix(functions, prefix)
    uses = {name: use for name, use in USES.items() if "distinct" not in name}
    calls = list(calls_of(uses, types))
    df = table.select("k", "i", *(COLUMNS[name] for name in PASSED))
    ours = over(df, "k", order_by="i").agg(**{name: use.build(f, x).rows(None, 0) for name, x, use in calls})
    ours = ours.drop(*df.columns[2:])
    window = "OVER (PARTITION BY k ORDER BY i ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    assert Answer.of(ours).differences(of_spark(session, "every_type", calls, window)) == {}


@pytest.mark.slow
def test_moving_frames_equal_those_of_spark(session: Any, table: DataFrame, functions: Functions) -> None:
    """OVER with frames that rows leave: they are retracted, merged, or folded anew."""
    calls = list(calls_of(FEW))
    df = table.select("k", "i", *(COLUMNS[name] for name in PASSED))
    ours = over(df, "k", order_by="i").agg(**{name: use.build(functions, x).rows(-1, 0) for name, x, use in calls})
    ours = ours.drop(*df.columns[2:])
    window = "OVER (PARTITION BY k ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)"
    assert Answer.of(ours).differences(of_spark(session, "every_type", calls, window)) == {}


class Epochs(Stream):
    """The rows of the table as a stream."""

    ddl = ROWS_DDL
    schema = pa.schema([("k", pa.string()), ("i", pa.int32()), ("at", pa.int32())])

    def collected(self, batch: DataFrame) -> Answer:
        return Answer.of(batch)


@pytest.mark.slow
def test_streams_equal_batches_of_spark(session: Any, table: DataFrame, functions: Functions, tmp_path: Path) -> None:
    """A stream, whose states are stored between two epochs."""
    calls = list(calls_of(ALL))

    def query(rows: DataFrame) -> DataFrame:
        return group_by(with_types(rows), "k").agg(**{name: use.build(functions, x) for name, x, use in calls})

    stream = Epochs(table.sparkSession, tmp_path, query)
    rows = [dict(zip(Epochs.schema.names, row, strict=True)) for row in ROWS]
    stream.write([row for row in rows if row["i"] in (1, 7)])
    stream.write([row for row in rows if row["i"] not in (1, 7)])
    (_, last) = stream.run()
    assert last.differences(of_spark(session, "every_type", list(calls_of(ALL)))) == {}


@pytest.mark.slow
def test_all_other_calls_are_refused(session: Any, table: DataFrame, functions: Functions) -> None:
    """Calls without a result are refused when the query is built, in words that name the argument or the function."""
    tried_names = {name for name, _, _ in calls_of(ALL)}
    tried_names |= {f"string_agg of {name}" for name in TEXTS}  # those with a collation give STRING
    grouped_df = group_by(table, "k")
    for what, use in ALL.items():
        for name in TYPES:
            if f"{what} of {name}" not in tried_names:
                with pytest.raises(RejectedError, match=rf"SCHEMA_MISMATCH: .*({COLUMNS[name]}|takes|{what})"):
                    grouped_df.agg(x=use.build(functions, COLUMNS[name]))


@pytest.mark.slow
def test_other_calls_are_refused_in_lists_and_over(session: Any, table: DataFrame, functions: Functions) -> None:
    """The same, for the types that are most easily lost, in the other plans."""
    register(session, functions, {name: f"each_{name}" for name in BUILT_IN})
    types = (*LOST, "INTERVAL")
    tried_names = {name for name, _, _ in calls_of(ALL)} | {f"string_agg of {name}" for name in TEXTS}
    for what, use in USES.items():
        for name in types:
            x = COLUMNS[name]
            if f"{what} of {name}" not in tried_names:
                message = rf"({x}|takes|{what})"
                with pytest.raises(RejectedError, match=message):
                    sql(session, f"SELECT {use.sql.format(f='each_', x=x)} FROM every_type", plan="lists")
                with pytest.raises(RejectedError, match=rf"SCHEMA_MISMATCH: .*{message}"):
                    over(table.select("k", "i", x), "k", order_by="i").agg(x=use.build(functions, x))


TEXT = "SELECT * FROM VALUES (1, 'a'), (2, 'B'), (3, 'A') AS t(i, s)"
CASED = {  # a call that depends on the collation, and Spark's result
    "max({c})": "b",
    "count(DISTINCT {c})": 2,
    "string_agg(upper(s) ORDER BY {c})": "A,A,B",
    "string_agg({c}) WITHIN GROUP (ORDER BY {c})": "a,a,b",
}


@pytest.mark.parametrize("plan", ["auto", pytest.param("lists", marks=pytest.mark.slow)])
@pytest.mark.parametrize("call", CASED)
def test_collations_are_refused_with_a_remedy(session: Any, functions: Functions, call: str, plan: str) -> None:
    """Python compares texts by their bytes. What the error says to write gives what Spark gives with the collation."""
    register(session, functions, {name: f"each_{name}" for name in ("max", "count", "string_agg")})
    session.sql(f"SELECT *, s COLLATE UTF8_LCASE AS c FROM ({TEXT})").createOrReplaceTempView("cased")
    with pytest.raises(RejectedError, match="compares texts by their bytes") as excinfo:
        sql(session, f"SELECT each_{call.format(c='c')} FROM cased", plan=plan)
    remedy = re.search(r"write (lower\(.*?\)) to ignore", excinfo.value.message)
    assert remedy is not None
    assert sql(session, f"SELECT each_{call.format(c=remedy[1])} FROM cased", plan=plan).collect() == [(CASED[call],)]


@pytest.mark.parametrize(
    "collation", ["s COLLATE UTF8_LCASE", "s || '' COLLATE UNICODE_CI", "collate(s, 'UTF8_LCASE')"]
)
def test_the_remedy_for_collations_can_be_executed(session: Any, functions: Functions, collation: str) -> None:
    """It takes the place of the collation that is written, and is right beside an operator."""
    register(session, functions, {"max": "each_max"})
    with pytest.raises(RejectedError, match="compares texts by their bytes") as excinfo:
        sql(session, f"SELECT each_max({collation}) FROM ({TEXT})")
    remedies = re.search(r"write (lower\(.*\)) to ignore the case, or (.*)", excinfo.value.message)
    assert remedies is not None
    assert "_LCASE COLLATE" not in excinfo.value.message
    assert [sql(session, f"SELECT each_max({each}) FROM ({TEXT})").collect() for each in remedies.groups()] == [
        [("b",)],
        [("a",)],
    ]


def test_types_without_an_order_are_refused(session: Any, functions: Functions) -> None:
    """Python sees a VARIANT as a struct of bytes, whose order means nothing; so does DISTINCT."""
    df = session.sql("SELECT parse_json('1') AS v, array(parse_json('1')) AS a")
    for use in (functions["max"]("v"), functions["min"]("a"), functions["count"]("v").distinct()):
        with pytest.raises(RejectedError, match="cannot compare such values; give a part of it, or its text"):
            group_by(df).agg(x=use)


@since_spark("4.3", "GEOMETRY without a setting")
@pytest.mark.parametrize("shape", ["ST_GeomFromWKB({})", "ST_GeogFromWKB({})"])
def test_geometry_is_counted_and_refused_elsewhere(session: Any, functions: Functions, shape: str) -> None:
    """Spark passes such values to Python and does not take them back, and they have no order."""
    point = shape.format("X'0101000000000000000000F03F0000000000000040'")
    df = session.sql(f"SELECT 1 AS k, 2 AS i, {point} AS g, struct({point} AS g) AS s")
    count = functions["count"]
    assert group_by(df, "k").agg(n=count("g"), d=count("g").distinct()).collect() == [(1, 1, 1)]
    first = functions["first"]
    refusal_of = {
        "the result of first is geo": lambda: group_by(df, "k").agg(x=first("g")),
        "the result of last is struct": lambda: group_by(df, "k").agg(x=functions["last"]("s")),
        "max takes 'g', .* cannot compare .*give its ST_AsBinary": lambda: group_by(df, "k").agg(
            x=functions["max"]("g")
        ),
        "min takes 's', .* cannot compare": lambda: group_by(df, "k").agg(x=functions["min"]("s")),
        "first takes 'g', .* its order cannot": lambda: group_by(df, "k").agg(x=first("i").order_by("g")),
        "the key 'g' is geo": lambda: group_by(df, "g").agg(n=count()),
        "the key 's' is struct": lambda: over(df, "s", order_by="i").agg(n=count()),
        "the order 'g' is geo": lambda: over(df, "k", order_by="g").agg(n=count()),
        "the column 'g' is geo": lambda: over(df, "k", order_by="i").agg(n=count()),
        "g of a dead letter is geo": lambda: group_by(df, "k", on_error="isolate").agg(n=count("g")),
    }
    for message, build in refusal_of.items():
        with pytest.raises(RejectedError, match=f"SCHEMA_MISMATCH: .*{message}"):
            build().schema  # noqa: B018 - of dead letters


@pytest.mark.every_turn
@since_spark("4.3", "TIME(9)")
@pytest.mark.parametrize("functions", ["embedded", "remote"], indirect=True)
def test_nanoseconds_may_be_keys_but_no_arguments(session: Any, functions: Functions) -> None:
    """Groups and DISTINCT values of TIME(9) differ by a nanosecond. `max` and `first` refuse one, cutting nothing."""
    times = "VALUES (1, TIME'03:04:05.000000001'), (2, TIME'03:04:05.000000002') AS t(i, t)"
    df = session.sql(f"SELECT i, CAST(t AS TIME(9)) AS t FROM {times}")
    count = functions["count"]
    assert group_by(df, "t").agg(n=count("t")).selectExpr("n").collect() == [(1,), (1,)]
    assert over(df, "t", order_by="i").agg(n=count()).selectExpr("n").collect() == [(1,), (1,)]
    distinct = count("t").distinct()
    assert group_by(df).agg(n=distinct).collect() == [(2,)]
    assert over(df, order_by="i").agg(n=distinct.rows(-1, 0)).selectExpr("n").collect() == [(1,), (2,)]
    for use in (functions["max"]("t"), functions["first"]("t")):
        for result in (group_by(df).agg(x=use), over(df, order_by="i").agg(x=use.rows(-1, 0))):
            with pytest.raises(PySparkException) as excinfo:
                result.collect()
            error = error_of(excinfo.value)
            assert error.code == "SCHEMA_MISMATCH"
            assert "has nanoseconds" in error.message
            assert "TIME(6)" in error.message


def nanosecond_timestamps(spark: Any, type_: str) -> Any:
    return spark.sql(f"SELECT 1 AS i, CAST('2026-01-02 03:04:05.000000001' AS {type_}) AS t")


@pytest.mark.every_turn
@since_spark("4.3", "TIMESTAMP_NTZ(9)")
@pytest.mark.every_way
@pytest.mark.parametrize("type_", ["TIMESTAMP_NTZ(9)", "TIMESTAMP_LTZ(7)"])
def test_nanosecond_timestamps_are_refused(spark: Any, type_: str) -> None:
    """PySpark has no class for them. Each operation says so, with what keeps or cuts off nanoseconds."""
    functions = connect([hour_of])
    spark.conf.set("spark.sql.timestampNanosTypes.enabled", "true")
    try:
        df = nanosecond_timestamps(spark, type_)
        df.createOrReplaceTempView("nanosecond_timestamps")
        register(spark, functions, {"max": "each_max", "count": "each_count", "hour_of": "hour_of"})
        cast = f"CAST('2026-01-02 03:04:05.000000001' AS {type_})"
        uses = {
            "group_by must know": lambda: group_by(df, "t"),
            "over must know": lambda: over(df, "i", order_by="t"),
            "with_columns must know": lambda: with_columns(df, hour=functions["hour_of"]("t")),
            "upserts must know": lambda: upserts(df, keys="i", sequence_by="t"),
            "the schema": lambda: with_schema(df, f"i INT, t {type_}", streaming=False),
            "the key": lambda: group_by(spark.range(1), f"{cast} AS t").agg(n=functions["count"]()),
            "the argument|columns of the query": lambda: group_by(spark.range(1)).agg(n=functions["max"](cast)),
            "the statement": lambda: sql(spark, "SELECT each_max(t) AS t FROM nanosecond_timestamps"),
            "plan the statement": lambda: sql(spark, "SELECT each_count(i) FROM nanosecond_timestamps", plan="lists"),
        }
        message = rf"PySpark has no type for {re.escape(type_)}, so no query over it can be planned"
        for what, use in uses.items():
            with pytest.raises(RejectedError, match=rf"SCHEMA_MISMATCH: .*({what}).*{message}"):
                use()
        text = df.selectExpr("CAST(t AS STRING) AS t")
        digits = int(type_[-2])
        expected = "2026-01-02 03:04:05.000000001" if digits == 9 else "2026-01-02 03:04:05"
        assert group_by(text, "t").agg(n=functions["count"]()).collect() == [(expected, 1)]
        micros = df.selectExpr(f"CAST(t AS {type_[:-3]}) AS t")
        assert group_by(micros).agg(t=functions["max"]("t")).selectExpr("CAST(t AS STRING)").collect() == [
            (expected[:19],)
        ]
    finally:
        spark.conf.unset("spark.sql.timestampNanosTypes.enabled")


class Places(Stream):
    """A stream of times of a day and the bytes of points."""

    ddl = "i INT, t TIME(6), wkb BINARY"
    schema = pa.schema([("i", pa.int32()), ("t", pa.time64("us")), ("wkb", pa.binary())])


@pytest.mark.every_turn
@since_spark("4.3", "GEOMETRY without a setting")
@pytest.mark.parametrize("shape", ["ST_GeomFromWKB", "ST_GeogFromWKB"])
def test_streams_have_times_of_a_day_and_refuse_geometries(
    session: Any, functions: Functions, tmp_path: Path, shape: str
) -> None:
    """A time of day is key, argument and result; a geometry is counted, and refused as key and as result."""
    count, top = functions["count"], functions["max"]
    point = bytes.fromhex("0101000000000000000000F03F0000000000000040")

    def place_query(df: Any) -> Any:
        return df.selectExpr("i", "t", f"{shape}(wkb) AS g")

    def count_query(df: Any) -> Any:
        result = group_by(place_query(df), "t", buckets=1).agg(n=count("g"), last=top("t"))
        return result.selectExpr("CAST(t AS STRING) AS t", "n", "CAST(last AS STRING) AS last")

    stream = Places(session, tmp_path, count_query)
    stream.write([{"i": 1, "t": 1_000_001, "wkb": point}, {"i": 2, "t": 1_000_002, "wkb": None}])
    stream.write([{"i": 3, "t": 1_000_001, "wkb": point}])
    result = [sorted((row["t"], row["n"], row["last"]) for row in epoch) for epoch in stream.run()]
    one, two = "00:00:01.000001", "00:00:01.000002"
    assert result == [[(one, 1, one), (two, 0, two)], [(one, 2, one)]]
    live = place_query(stream.input())
    for message, use in {
        "the key 'g' is geo": lambda: group_by(live, "g").agg(n=count()),
        "the result of first is geo": lambda: group_by(live, "t").agg(g=functions["first"]("g")),
    }.items():
        with pytest.raises(RejectedError, match=f"SCHEMA_MISMATCH: .*{message}"):
            use()


class Instants(Stream):
    """A stream of times of a day with nanoseconds."""

    ddl = "i int, t TIME(9)"
    schema = pa.schema([("i", pa.int32()), ("t", pa.time64("ns"))])


@pytest.mark.every_turn
@since_spark("4.3", "TIME(9)")
@pytest.mark.parametrize("functions", ["embedded", "remote"], indirect=True)
def test_nanoseconds_may_be_keys_of_streams(session: Any, functions: Functions, tmp_path: Path) -> None:
    """Over epochs, groups differ by a nanosecond, and a function that would cut them off refuses them."""
    count, first, second = functions["count"], 1_000_000_001, 1_000_000_002

    def count_query(df: Any) -> Any:
        return group_by(df, "t", buckets=1).agg(n=count()).selectExpr("CAST(t AS STRING) AS t", "n")

    stream = Instants(session, tmp_path, count_query)
    stream.write([{"i": 1, "t": first}, {"i": 2, "t": second}])
    stream.write([{"i": 3, "t": first}])
    result = [sorted((row["t"], row["n"]) for row in epoch) for epoch in stream.run()]
    assert result == [[("00:00:01.000000001", 1), ("00:00:01.000000002", 1)], [("00:00:01.000000001", 2)]]
    (tmp_path / "max").mkdir()
    refused_query = Instants(session, tmp_path / "max", lambda df: group_by(df, buckets=1).agg(x=functions["max"]("t")))
    refused_query.write([{"i": 1, "t": first}])
    with pytest.raises(PySparkException) as excinfo:
        refused_query.run()
    error = error_of(excinfo.value)
    assert error.code == "SCHEMA_MISMATCH"
    assert "has nanoseconds" in error.message


@udaf(input_types=["DECIMAL(12, 4)"], result_type="DECIMAL(14, 4)", state_type="DECIMAL(14, 4)", skip_nulls=True)
class Money:
    """Adds amounts."""

    def create_accumulator(self) -> Decimal:
        return Decimal(0)

    def accumulate(self, accumulator: Decimal, amount: Decimal) -> Decimal:
        return accumulator + amount

    def merge(self, accumulator: Decimal, other: Decimal) -> Decimal:
        return accumulator + other

    def get_value(self, accumulator: Decimal) -> Decimal:
        return accumulator


@udf(input_types=["DECIMAL(4, 2)"], result_type="STRING")
def money_text(amount: Decimal) -> str:
    """Return an amount as text."""
    return str(amount)


@udf
def hour_of(at: datetime) -> int:
    """Return the hour, which is 0 for a DATE."""
    return at.hour


@pytest.mark.every_turn
def test_numbers_are_widened_to_decimals_and_dates_to_timestamps(session: Any) -> None:
    """All integers and decimals fit every DECIMAL argument, as long as their values do; a DATE is midnight."""
    f = connect([Money, money_text, hour_of])
    df = session.sql(
        "SELECT id, CAST(id AS INT) AS n, CAST(id + 0.5 AS DECIMAL(38, 6)) AS d, DATE'2026-01-02' AS day FROM range(3)"
    )
    uses = {name: f["money"](name) for name in ("id", "n", "d")}
    assert group_by(df).agg(**uses).collect() == [(Decimal(3), Decimal(3), Decimal("4.5"))]
    rows = with_columns(df, text=f["money_text"]("d"), hour=f["hour_of"]("day")).orderBy("id").select("text", "hour")
    assert rows.collect() == [("0.50", 0), ("1.50", 0), ("2.50", 0)]
    register(session, f, {"money": "each_money", "money_text": "each_money_text"})
    df.createOrReplaceTempView("amounts")
    for plan in ("auto", "lists"):
        assert sql(session, "SELECT each_money(n) AS m FROM amounts", plan=plan).collect() == [(Decimal(3),)]
    assert sql(session, "SELECT each_money_text(d) FROM amounts WHERE id = 1").collect() == [("1.50",)]
    with pytest.raises(PySparkException, match=r"OVERFLOW: the argument d is [012].500001, which does not"):
        group_by(df.withColumn("d", df.d + Decimal("0.000001")), "id").agg(x=f["money"]("d")).collect()
    with pytest.raises(PySparkException, match=r"OVERFLOW: the argument id is 10[012], which does not fit"):
        with_columns(df.selectExpr("id + 100 AS id"), x=f["money_text"]("id")).collect()
