"""SQL types by name, and the columns that arguments accept."""

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from foldflight.engine.query.blocks import without_nullability
from foldflight.errors import RejectedError
from foldflight.functions.types.arrow import JSON
from foldflight.functions.types.sql import can_widen, check_plain, parse_type, sql_name, type_variables
from foldflight.spark.versions.types import arrow_type

SPELLINGS = {
    "BIGINT": pa.int64(),
    "int8": pa.int64(),
    "long": pa.int64(),
    "INT": pa.int32(),
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "TINYINT": pa.int8(),
    "double precision": pa.float64(),
    "float8": pa.float64(),
    "float(53)": pa.float64(),
    "real": pa.float32(),
    "FLOAT": pa.float32(),
    "boolean": pa.bool_(),
    "varchar(20)": pa.string(),
    "character varying": pa.string(),
    "text": pa.string(),
    "bytea": pa.binary(),
    "BYTES": pa.binary(),
    "DECIMAL(10, 2)": pa.decimal128(10, 2),
    "numeric": pa.decimal128(38, 18),
    "date": pa.date32(),
    "time without time zone": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "timestamp(3)": pa.timestamp("us"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ(3)": pa.timestamp("us", tz="UTC"),
    "timestamp with time zone": pa.timestamp("us", tz="UTC"),
    "interval": pa.month_day_nano_interval(),
    "INTERVAL DAY TO SECOND": pa.duration("us"),
    **({"jsonb": JSON} if JSON else {}),
    "INT[]": pa.list_(pa.int32()),
    "ARRAY<ARRAY<BIGINT>>": pa.list_(pa.list_(pa.int64())),
    "MAP<STRING, DOUBLE>": pa.map_(pa.string(), pa.float64()),
    "STRUCT<a INT, b: TEXT>": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "ROW(day DATE, time TIME)": pa.struct([("day", pa.date32()), ("time", pa.time64("us"))]),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_four_engines_are_parsed(spelling: str) -> None:
    """Every spelling is parsed to its type, and `sql_name` is parsed to the same type."""
    assert parse_type(spelling) == SPELLINGS[spelling]
    assert parse_type(sql_name(SPELLINGS[spelling])) == SPELLINGS[spelling]


@pytest.mark.parametrize(
    "wrong",
    [
        "FOO",
        "ARRAY<",
        "ARRAY<INT",
        "DECIMAL(50)",
        "DECIMAL(2, 5)",
        "DECIMAL(1,2,3)",
        "INT(3)",
        "INT INT",
        "",
        "DATE;",
        "STRUCT",
        "MAP<INT>",
    ],
)
def test_texts_that_are_no_type_are_refused(wrong: str) -> None:
    """Text that is not a type is refused with the text and examples."""
    with pytest.raises(RejectedError, match="is not a type") as excinfo:
        parse_type(wrong)
    assert excinfo.value.code == "SIGNATURE"
    assert repr(wrong) in excinfo.value.message
    assert "BIGINT" in excinfo.value.message


DAY = spark.DayTimeIntervalType(0, 3)
OF_SPARK: list[tuple[spark.DataType, pa.DataType]] = [
    (spark.BooleanType(), pa.bool_()),
    (spark.ByteType(), pa.int8()),
    (spark.ShortType(), pa.int16()),
    (spark.IntegerType(), pa.int32()),
    (spark.LongType(), pa.int64()),
    (spark.FloatType(), pa.float32()),
    (spark.DoubleType(), pa.float64()),
    (spark.DecimalType(10, 2), pa.decimal128(10, 2)),
    (spark.StringType(), pa.string()),
    (spark.StringType("UNICODE"), pa.string()),
    (spark.VarcharType(5), pa.string()),
    (spark.BinaryType(), pa.binary()),
    (spark.DateType(), pa.date32()),
    (spark.TimestampType(), pa.timestamp("us", "UTC")),
    (spark.TimestampNTZType(), pa.timestamp("us")),
    (spark.TimeType(6), pa.time64("us")),
    (DAY, pa.duration("us")),
    (spark.NullType(), pa.null()),
    *([(spark.VariantType(), JSON)] if JSON else []),
    (spark.ArrayType(spark.MapType(spark.StringType(), spark.TimestampType())), None),
    (spark.StructType([spark.StructField("timestamp", spark.TimestampNTZType())]), None),
]


@pytest.mark.parametrize(("spark_type", "expected"), OF_SPARK, ids=[str(each) for each, _ in OF_SPARK])
def test_types_of_pyspark_are_parsed(spark_type: spark.DataType, expected: pa.DataType | None) -> None:
    """A PySpark type is parsed to the Arrow type that PySpark uses."""
    if expected is None:
        expected = without_nullability(arrow_type(spark_type))
    assert parse_type(spark_type) == expected


def test_a_type_of_pyspark_without_a_counterpart_is_refused() -> None:
    """A type without an equivalent in Python is refused."""
    with pytest.raises(RejectedError, match="INTERVAL YEAR TO MONTH"):
        parse_type(spark.YearMonthIntervalType())


def test_timestamps_are_spelled_as_an_engine_spells_them() -> None:
    """`sql_name` has options for the names of timestamps, also within other types."""
    type_ = pa.struct([("a", pa.list_(pa.timestamp("us"))), ("b", pa.map_(pa.string(), pa.timestamp("us", "UTC")))])
    assert sql_name(type_) == "STRUCT<a ARRAY<TIMESTAMP>, b MAP<STRING, TIMESTAMPTZ>>"
    assert sql_name(type_, zoneless="X", zoned="Y") == "STRUCT<a ARRAY<X>, b MAP<STRING, Y>>"


def test_unusual_names_of_members_are_quoted() -> None:
    """What `parse_type` does not read as a name is written with backticks, also in nested types."""
    quote = pa.struct([(name, pa.int32()) for name in ("a b", "1", "größe", "x:y", "plain")])
    assert sql_name(quote) == "STRUCT<`a b` INT, `1` INT, `größe` INT, `x:y` INT, plain INT>"
    assert parse_type(sql_name(pa.list_(quote))) == pa.list_(quote)


def test_an_object_that_is_no_text_is_refused() -> None:
    """A value that is neither text nor a type is refused."""
    with pytest.raises(RejectedError, match="is not a type"):
        parse_type(int)  # type: ignore[arg-type]


def test_type_variables_stand_for_argument_types() -> None:
    """A capital letter is replaced wherever it is used as a type."""
    assert type_variables("STRUCT<value T, seen BOOLEAN>") == {"T"}
    assert type_variables("STRUCT<T INT, U: ARRAY<V>>") == {"V"}
    assert not type_variables("INTERVAL DAY TO SECOND")  # of TO, the T alone is no word
    assert not type_variables("STRUCT<Total BIGINT>")
    assert parse_type("ARRAY<T>", {"T": pa.date32()}) == pa.list_(pa.date32())


@pytest.mark.parametrize(
    ("actual", "declared_type"),
    [
        ("INT", "BIGINT"),
        ("BIGINT", "DOUBLE"),
        ("SMALLINT", "REAL"),
        ("INT", "DECIMAL(12, 2)"),
        ("DECIMAL(10, 2)", "DECIMAL(12, 3)"),
        ("BIGINT", "DECIMAL(4, 4)"),
        ("DECIMAL(38, 10)", "DECIMAL(10, 2)"),
        ("DATE", "TIMESTAMP"),
        ("DECIMAL(10, 2)", "DOUBLE"),
        ("REAL", "DOUBLE"),
        ("NULL", "MAP<INT, INT>"),
        ("ARRAY<INT>", "ARRAY<BIGINT>"),
        ("STRUCT<a INT>", "STRUCT<a BIGINT>"),
        ("STRING", "JSON"),
    ],
)
def test_casts_that_sql_makes_by_itself_are_accepted(actual: str, declared_type: str) -> None:
    """Casts that lose nothing are implicit, and those to DECIMAL, of which each value is checked."""
    assert can_widen(parse_type(actual), parse_type(declared_type))


@pytest.mark.parametrize(
    ("actual", "declared_type"),
    [
        ("BIGINT", "INT"),
        ("DOUBLE", "BIGINT"),
        ("DOUBLE", "REAL"),
        ("BIGINT", "REAL"),
        ("STRING", "INT"),
        ("INT", "STRING"),
        ("INT", "BOOLEAN"),
        ("DOUBLE", "DECIMAL(10, 2)"),
        ("ARRAY<BIGINT>", "ARRAY<DECIMAL(10, 2)>"),
        ("TIMESTAMP", "TIMESTAMPTZ"),
        ("DATE", "TIMESTAMPTZ"),
        ("TIMESTAMP", "DATE"),
        ("STRUCT<a INT>", "STRUCT<b INT>"),
    ],
)
def test_casts_that_must_be_written_are_refused(actual: str, declared_type: str) -> None:
    """Casts that can lose or reinterpret a value must be in the query."""
    assert not can_widen(parse_type(actual), parse_type(declared_type))


@pytest.mark.parametrize(
    "type_",
    [
        *(parse_type(name) for name in ("BIGINT", "BOOLEAN", "REAL", "DECIMAL(10, 2)", "INT256", "NULL", "JSON")),
        *(parse_type(name) for name in ("DATE", "TIME", "TIMESTAMP", "TIMESTAMPTZ", "INTERVAL", "DURATION")),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3), pa.float16(), pa.uint64()),
        pa.list_(pa.large_list(pa.list_(pa.string(), 2))),
        pa.map_(pa.string(), pa.struct([("a", pa.int8())])),
    ],
    ids=str,
)
def test_types_of_sql_are_plain(type_: pa.DataType) -> None:
    """The types of SQL are plain, and so are types composed of them."""
    check_plain(type_)
    assert parse_type(type_) == type_


@pytest.mark.parametrize(
    ("type_", "remedy"),
    [
        (pa.string_view(), "the Arrow type string_view is not accepted.*cast it to string\n"),
        (pa.binary_view(), "cast it to binary\n"),
        (pa.dictionary(pa.int8(), pa.string()), "decode it to string\n"),
        (pa.dictionary(pa.int8(), pa.list_(pa.int64())), "decode it to list<item: int64>\n"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "decode it to int64\n"),
        (pa.list_view(pa.int64()), "cast it to list<item: int64>\n"),
        (pa.large_list_view(pa.int64()), "cast it to large_list<item: int64>\n"),
        (pa.dense_union([pa.field("a", pa.int64())]), "send a struct"),
        (pa.sparse_union([pa.field("a", pa.int64())]), "send a struct"),
        (pa.list_(pa.string_view()), "cast it to string\n"),
        (pa.large_list(pa.string_view()), "cast it to string\n"),
        (pa.list_(pa.string_view(), 2), "cast it to string\n"),
        (pa.struct([("a", pa.list_(pa.list_view(pa.int64())))]), "cast it to list<item: int64>\n"),
        (pa.map_(pa.string_view(), pa.int8()), "cast it to string\n"),
        (pa.map_(pa.string(), pa.binary_view()), "cast it to binary\n"),
        (pa.opaque(pa.string_view(), "a type", "of someone"), "cast it to string\n"),
    ],
    ids=str,
)
def test_types_that_are_not_plain(type_: pa.DataType, remedy: str) -> None:
    """Other types are refused at any depth, in columns and declarations, with the type to use instead."""
    with pytest.raises(RejectedError, match=remedy) as excinfo:
        check_plain(type_)
    assert excinfo.value.code == "SCHEMA_MISMATCH"
    with pytest.raises(RejectedError, match=remedy) as excinfo:
        parse_type(type_)
    assert excinfo.value.code == "SIGNATURE"
