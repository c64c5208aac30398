"""External functions of RisingWave and Databend: the published packages beside ours, and recorded streams."""

from __future__ import annotations

import contextlib
import datetime
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import databend_udf
import grpc
import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from databend_udf.client import UDFClient

from bench.environments import NotInstalledError, arrow_udf_server
from foldflight import Registry, udaf, udf, udtf
from foldflight.ext.wire import stateless_calls
from foldflight.ext.wire.stateless_calls import RisingWave
from foldflight.server import exchanges
from foldflight.server.run.lifecycle import ProcessServer, serving
from tests import scalar_functions
from tests.wire.kit import DEADLINE_S, PATIENCE_S, eventually

_EXCHANGE = "/arrow.flight.protocol.FlightService/DoExchange"
# What arrow-udf's Rust client sends: the schema and one batch of two BIGINT columns without names, (3, 5), (NULL, 7).
_SCHEMA = bytes.fromhex(
    "ffffffffa80000001000000000000a000c000600050008000a000000000104000c000000080008000000040008000000040000000200000044"
    "00000004000000d4ffffff00000102100000001400000004000000000000000000000000000000c4ffffff0000000140000000100014000800"
    "060007000c00000010001000000000000102100000001c0000000400000000000000000000000000000008000c000800070008000000000000"
    "0140000000"
)
_BATCH = bytes.fromhex(
    "ffffffffb800000014000000000000000c0016000600050008000c000c0000000003040018000000280000000000000000000a0018000c0004"
    "0008000a0000005c000000100000000200000000000000000000000400000000000000000000000100000000000000080000000000000010"
    "00000000000000180000000000000000000000000000001800000000000000100000000000000000000000020000000200000000000000010000"
    "000000000002000000000000000000000000000000010000000000000003000000000000000000000000000000050000000000000007000000"
    "00000000"
)

RECORDED = json.loads(Path(__file__).with_name("arrow_udf_recorded.json").read_text(encoding="utf-8"))["functions"]


@udf(input_types=["DECIMAL(10, 2)"], result_type="DECIMAL(12, 3)")
def third(x):
    return None if x is None else x / 3


@udf(input_types=["JSON"], result_type="JSON")
def tagged(value):
    return {"value": value, "tags": [1, None]}


@udf(input_types=["TIMESTAMPTZ", "INTERVAL DAY"], result_type="TIMESTAMPTZ")
def after(at, span):
    return at + span


@udf(input_types=["BIGINT[]"], result_type="BIGINT")
def total(values):
    """An aggregate of RisingWave: `aggregate:total(x)` passes the values of a group."""
    return None if values is None else sum(values)


@udf(input_types=["DECIMAL(10, 2)[]"], result_type="STRUCT<low DECIMAL(10, 2), name STRING>")
def lowest(values):
    return {"low": min(values), "name": "low"}


@udf(input_types=["JSON[]", "INTERVAL"], result_type="STRING")
def first_document(documents, span):
    return f"{documents[0]} {span.days}"


@udf(input_types=["MAP<STRING, DECIMAL(5, 2)>"], result_type="INT")
def size(values):
    return len(values)


@udf(input_types=["MAP<DECIMAL(5, 2), STRING>"], result_type="MAP<DECIMAL(5, 2), STRING>")
def priced(names):
    return names


@udf(input_types=["T"], result_type=lambda type_: {"int64": "INT"}[str(type_)])
def narrow(value):
    return value


@udf(input_types=["STRUCT<a BIGINT, b BIGINT>", "STRUCT<a BIGINT, b BIGINT>[]"], result_type="STRING")
def shown(pair, pairs):
    return "; ".join(f"{each['a']} {each['b']}" for each in [pair, *pairs])


V2 = Annotated[np.ndarray, "VECTOR(2)"]
W2 = Annotated[np.ndarray, "VECTOR(2, DOUBLE)"]


@dataclass
class VectorTotal:
    """A sum of vectors."""

    total: W2


PRICES = "STRUCT<price DECIMAL(10, 2), name STRING, at TIMESTAMPTZ, old MAP<STRING, DECIMAL(5, 1)>, spans INTERVAL[]>"


@udf(input_types=[PRICES], result_type=PRICES)
def echoed(value):
    return value


@udf(input_types=[pa.list_(pa.float32(), 2)], result_type=pa.list_(pa.float32(), 2))
def turned(vector):
    return None if vector is None else vector[::-1]


@udf
def scaled(v: V2) -> V2 | None:
    return None if v is None else v / 2


@udaf
class VectorSum:
    def create_accumulator(self) -> VectorTotal:
        return VectorTotal(np.zeros(2))

    def accumulate(self, acc: VectorTotal, v: V2) -> None:
        acc.total += v

    def get_value(self, acc: VectorTotal) -> V2:
        return acc.total


@udtf(input_types=["INT"], result_types={"n": "INT"})
def series(n):
    yield from range(n)


@pytest.fixture(scope="module")
def server() -> Iterator[ProcessServer]:
    with serving(
        scalar_functions,
        third,
        tagged,
        after,
        total,
        lowest,
        first_document,
        size,
        narrow,
        shown,
        priced,
        series,
        turned,
        scaled,
        VectorSum,
        echoed,
        Listed,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ProcessServer) -> Iterator[Any]:
    with fl.connect(f"grpc://127.0.0.1:{server.flight.port}") as result:
        yield result


def call(client: Any, name: str, *columns: pa.Array, batches: int = 1) -> pa.Table:
    """Call an external function as arrow-udf's clients do: columns without names, by position."""
    batch = pa.RecordBatch.from_arrays(list(columns), schema=pa.schema([("", column.type) for column in columns]))
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_path(name))
    with contextlib.closing(writer):
        writer.begin(batch.schema)
        for _ in range(batches):
            writer.write_batch(batch)
        writer.done_writing()
        return reader.read_all()


def described(client: Any, name: str) -> Any:
    return client.get_flight_info(fl.FlightDescriptor.for_path(name))


def test_the_handshake_tells_version_and_signature(client: Any) -> None:
    """The protocol is version 2, and a function is described by its inputs and outputs, as arrow-udf writes types."""
    assert [answer.body.to_pybytes() for answer in client.do_action("protocol_version")] == [b"\x02"]
    info = described(client, "third")
    assert (info.total_records, info.schema.names) == (1, ["x", "third"])
    raw = pa.ipc.read_schema(info.schema.serialize())
    assert raw.field(1).metadata == {b"ARROW:extension:name": b"arrowudf.decimal"} or "arrowudf" in str(
        raw.field(1).type
    )
    assert described(client, "after").schema.field("after").type == pa.timestamp("us", "+00:00")
    split = described(client, "split").schema
    assert split.names == ["text", "row", "split"]
    assert split.field("row").type == pa.int32()
    assert described(client, "series").schema.field("series").type == pa.int32()


def test_results_of_scalar_calls_come_by_position(client: Any) -> None:
    """Results come by position, in as many batches as were sent; zero rows and NULLs, too."""
    result = call(client, "multiply", pa.array([3, None]), pa.array([5, 7]), batches=3)
    assert result.to_pydict() == {"multiply": [15, None] * 3}
    assert call(client, "multiply", pa.array([], pa.int64()), pa.array([], pa.int64())).num_rows == 0
    assert call(client, "score", pa.array(["abc"]), pa.array([1], pa.int32())).to_pydict() == {"score": [31]}


def test_rows_that_fail_have_an_error(client: Any) -> None:
    """The column of errors is there only if a row has failed; a later batch cannot add it."""
    assert call(client, "ratio", pa.array([4]), pa.array([2])).column_names == ["ratio"]
    result = call(client, "ratio", pa.array([4, 1]), pa.array([2, 0])).to_pydict()
    assert result == {"ratio": [2.0, None], "error": [None, "ratio raised ZeroDivisionError: division by zero"]}


def test_types_of_other_engines_are_converted(client: Any) -> None:
    """Decimals and JSON are texts, timestamps have a zone, lists and structs are converted inside."""
    decimals = call(client, "third", pa.array(["1.50", None, "-0.02"]))
    assert decimals.column(0).cast(pa.string()).to_pylist() == ["0.500", None, "-0.007"]
    result = call(client, "tagged", pa.array(['{"a": 1}', "null"])).column(0).cast(pa.string()).to_pylist()
    assert result[0] == '{"value":{"a":1},"tags":[1,null]}'
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    later = call(
        client,
        "after",
        pa.array([at], pa.timestamp("us", "+00:00")),
        pa.array([datetime.timedelta(1)], pa.duration("us")),
    )
    assert later.column(0).to_pylist() == [at + datetime.timedelta(1)]
    assert call(client, "total", pa.array([[1, 2], None, []], pa.list_(pa.int64()))).to_pydict() == {
        "total": [3, None, 0]
    }
    documents, span = pa.array([['{"a":1}', None]]), pa.array([(0, 3, 0)], pa.month_day_nano_interval())
    assert call(client, "first_document", documents, span).to_pydict() == {"first_document": ['{"a":1} 3']}
    (low,) = call(client, "lowest", pa.array([["2.50", "1.00"]], pa.list_(pa.string()))).column(0).to_pylist()
    assert (str(low["low"]), low["name"]) == ("1.00", "low")


@pytest.mark.parametrize(
    ("first", "second"), [(("x", pa.int64()), ("y", pa.int64())), (("", pa.int64()), ("", pa.int32()))]
)
def test_members_of_structs_are_taken_by_position(client: Any, first: Any, second: Any) -> None:
    """Names of members do not matter, also in lists, and also where a type is widened."""
    type_ = pa.struct([first, second])
    values = pa.StructArray.from_arrays([pa.array([1, 3], first[1]), pa.array([2, 4], second[1])], fields=list(type_))
    lists = pa.ListArray.from_arrays([0, 2], values)
    assert call(client, "shown", values[1:], lists).to_pydict() == {"shown": ["3 4; 1 2; 3 4"]}


@udaf(input_types=["DECIMAL(10, 2)", "STRING"], result_type="STRING")
class Listed:
    """Shows its rows, so that a test sees what it was given; fails for `!`."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, accumulator: list[str], price: Decimal, text: str) -> None:
        if text == "!":
            raise ValueError(text)
        accumulator.append(f"{price} {text}")

    def get_value(self, accumulator: list[str]) -> str:
        return "; ".join(accumulator)


def test_aggregates_fold_lists(server: ProcessServer, client: Any) -> None:
    """The lists of a row are the rows of one group, also none, NULL, and NULLs inside; each stream may have chunks."""

    def lists(values: Any, type_: pa.DataType) -> pa.Array:
        return pa.array(values, pa.list_(type_))

    info = described(client, "aggregate:listed")
    assert (info.total_records, info.schema.names) == (2, ["price", "text", "listed"])
    assert [str(type_) for type_ in info.schema.types[1:]] == ["list<item: string>", "string"]
    prices = lists([["1.5", None], [], None, ["2"], ["3"]], pa.string())
    texts = lists([["a", "b"], [], None, ["!"], ["c"]], pa.string())
    expected = ["1.50 a; None b", "", "", None, "3.00 c"]
    result = call(client, "aggregate:listed", prices, texts, batches=2).to_pydict()
    assert result["listed"] == expected * 2
    assert result["error"] == [*[None] * 3, "accumulate raised ValueError: !", None] * 2
    numbers = lists([[1, None], [None], None, [5, 7, 5]], pa.int64())
    assert call(client, "aggregate:sum", numbers).column("sum").cast(pa.int64()).to_pylist() == [1, None, None, 17]
    assert call(client, "aggregate:count", numbers).to_pydict() == {"count": [1, 0, 0, 3]}
    assert call(client, "aggregate:count", numbers[:0]).to_pydict() == {"count": []}
    calls = UDFClient("127.0.0.1", server.flight.port)
    assert calls.call_function("databend:aggregate:listed", [[Decimal("1.5")], []], [["a"], []]) == ["1.50 a", ""]
    with pytest.raises(fl.FlightError, match="ValueError: !"):
        calls.call_function("databend:aggregate:listed", [[Decimal("1.5")]], [["!"]])


@pytest.mark.parametrize("prefix", ["", "databend:"])
def test_nested_values_pass_both_ways(client: Any, prefix: str) -> None:
    """A struct of decimals, timestamps, maps and lists is written as each dialect writes its members."""
    schema = described(client, f"{prefix}echoed").schema
    assert schema.types[0] == schema.types[1]
    result_type = schema.field(0).type
    assert [str(field.type) for field in result_type][:2] == (
        ["decimal128(10, 2)", "large_string"] if prefix else ["string", "string"]
    )
    decimal = Decimal if prefix else str
    at = datetime.datetime(2026, 1, 2, tzinfo=None if prefix else datetime.UTC)
    value = {"price": decimal("1.50"), "name": "a", "at": at, "old": [("b", decimal("2.5"))], "spans": [(1, 2, 3)]}
    arguments = pa.array([value, None, {**value, "price": None, "old": None}], result_type)
    assert call(client, f"{prefix}echoed", arguments).column(0).combine_chunks().equals(arguments)


def test_lists_of_reals_are_vectors_for_databend(server: ProcessServer, client: Any) -> None:
    """A list of a fixed number of REAL is a list for RisingWave, and a vector for Databend."""
    result = call(client, "turned", pa.array([[1, 2], None], pa.list_(pa.float32())))
    assert result.schema.field("turned").type == pa.list_(pa.float32())
    assert described(client, "turned").schema.field(0).type == pa.list_(pa.float32())
    assert result.to_pydict() == {"turned": [[2, 1], None]}
    calls = UDFClient("127.0.0.1", server.flight.port)
    schema = calls.get_function_info("databend:turned").schema
    assert (schema.field(0).type, schema.field(0).metadata[b"Extension"]) == (pa.list_(pa.float32(), 2), b"Vector")
    assert calls.call_function("databend:turned", [[1, 2]]) == [[2, 1]]


@pytest.mark.parametrize("prefix", ["", "databend:"])
def test_vectors_are_lists_for_engines_without_them(server: ProcessServer, client: Any, prefix: str) -> None:
    """A VECTOR is a vector for Databend and a list for RisingWave, and other lists are refused with their row."""
    reals, sized_list = pa.list_(pa.float32()), pa.list_(pa.float32(), 2)
    own = described(client, f"{prefix}scaled").schema.field(0)
    assert (own.type, (own.metadata or {}).get(b"Extension")) == ((sized_list, b"Vector") if prefix else (reals, None))
    for type_ in (reals, sized_list):
        result = call(client, f"{prefix}scaled", pa.array([[1, -0.0], None, [float("inf"), float("nan")]], type_))
        assert result.schema.types[0] == own.type
        assert str(result.column(0).to_pylist()) == "[[0.5, -0.0], None, [inf, nan]]"
    groups = pa.array([[[1, 2], [3, 4]], [], [[5, 5]]], pa.list_(own.type))
    assert call(client, f"{prefix}aggregate:vector_sum", groups).column(0).to_pylist() == [[4, 6], [0, 0], [5, 5]]
    wrong = [
        ([[1, 2], [1]], reals, "row 1 of a batch is no vector: it has 1 items"),
        ([[1, None]], sized_list, "item 1 is NULL"),
    ]
    wrong += [
        ([[1, 2]], pa.list_(pa.float64()), r"cannot be read as VECTOR\(2\)"),
        ([[1, 2, 3]], pa.list_(pa.float32(), 3), ""),
    ]
    for values, type_, why in wrong:
        with pytest.raises(fl.FlightError, match=f"argument 1 of scaled.*{why}"):
            call(client, f"{prefix}scaled", pa.array(values, type_))


def test_keys_of_maps_keep_their_metadata(client: Any) -> None:
    """A decimal that is the key of a map is written and described as a decimal, not as a text."""
    result = call(client, "priced", pa.array([[("1.50", "a")]], pa.map_(pa.string(), pa.string())))
    for field in (described(client, "priced").schema.field("names"), result.schema.field("priced")):
        assert "arrowudf.decimal" in f"{field.type.key_field.metadata} {field.type.key_type}"
    assert [(str(price), name) for price, name in result.column(0)[0].as_py()] == [("1.50", "a")]


def test_table_functions_answer_with_row_and_value(client: Any) -> None:
    """A table function answers with the row and its value."""
    result = call(client, "series", pa.array([2, 0, 1], pa.int32()))
    assert result.to_pydict() == {"row": [0, 0, 2], "series": [0, 1, 0]}
    many = call(client, "series", pa.array([100_000, 50_000], pa.int32()))  # in parts
    assert many.column("series").to_pylist() == [*range(100_000), *range(50_000)]
    split = call(client, "split", pa.array(["a b", None]))
    assert split.to_pydict() == {"row": [0, 0], "split": [{"word": "a", "at": 0}, {"word": "b", "at": 1}]}


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("multipy", [pa.array([1])], "did you mean multiply"),
        ("sum", [pa.array([1])], "as an external function it is aggregate:sum, and takes lists"),
        ("aggregate:sum", [pa.array([1])], r"argument 1 of sum is int64.* give array_agg\(...\)"),
        ("aggregate:multiply", [pa.array([1])], "multiply is a scalar function.*: leave out aggregate:"),
        ("aggregate:count", [], "the stream has no column"),
        (
            "aggregate:listed",
            [pa.array([["1"]]), pa.array([["a", "b"]])],
            "they have 1 and 2 values",
        ),
        ("aggregate:listed", [pa.array([["1"]]), pa.array([[1]])], "argument 2 of listed is int64, which cannot"),
        ("multiply", [pa.array([1])], "takes 2 columns, and the stream has 1"),
        (
            "multiply",
            [pa.array(["a"]), pa.array([1])],
            "argument 1 of multiply is string, which cannot",
        ),
        ("multiply", [pa.array(["12"]), pa.array([1])], "argument 1 of multiply is string.*BIGINT: cast it in the"),
        ("multiply", [pa.array([1]), pa.array([True])], "argument 2 of multiply is bool, which cannot"),
        ("series", [pa.array([1], pa.int64())], "argument 1 of series is int64, which cannot be read as INT"),
        ("after", [pa.array([0], pa.timestamp("us")), pa.array([0], pa.duration("us"))], "read as TIMESTAMPTZ"),
        ("total", [pa.array([["1"]])], "list<item: string>, which cannot be read as ARRAY<BIGINT>"),
        ("size", [pa.array([[("a", 1.5)]], pa.map_(pa.string(), pa.float64()))], "cannot be read as MAP<STRING"),
        ("third", [pa.array(["NaN"])], "cannot be read as DECIMAL"),
        ("size", [pa.array([[("a", "1"), ("a", "2")]], pa.map_(pa.string(), pa.string()))], "SCHEMA_MISMATCH"),
        ("tagged", [pa.array(["[" * 100_000])], r"SCHEMA_MISMATCH.*JSON. has no Python value in row 0"),
        ("shown", [pa.array([{"a": 1}]), pa.array([[{"a": 1}]])], "has 1 members, and 2 are declared"),
        ("narrow", [pa.array(["a"])], "the callable that declares the types of narrow raised KeyError"),
        ("words", [pa.array([1], pa.int64()).dictionary_encode()], "only plain types are"),
    ],
)
def test_bad_calls_are_refused(client: Any, name: str, columns: list[pa.Array], message: str) -> None:
    """Unknown functions, wrong numbers and types of columns are errors that say so."""
    with pytest.raises(fl.FlightError, match=message):
        call(client, name, *columns)


def test_the_client_of_databend_calls_functions(server: ProcessServer) -> None:
    """Databend's published client calls our functions, with its own types."""
    calls = UDFClient("127.0.0.1", server.flight.port)
    assert calls.call_function("databend:multiply", [1, 2, None], [3, 4, 5]) == [3, 8, None]
    assert calls.call_function("databend:normalise", " Ab ") == ["ab"]
    assert calls.call_function("databend:split", "a b") == [{"word": "a", "at": 0}, {"word": "b", "at": 1}]
    assert calls.call_function("databend:forty_two") == [42]
    assert calls.call_function("databend:third", Decimal("1.50")) == [Decimal("0.500")]
    assert calls.call_function("databend:tagged", b'{"a": 1}') == [b'{"value":{"a":1},"tags":[1,null]}']
    schema = calls.get_function_info("databend:tagged").schema
    assert schema.field(1).type == pa.large_binary()
    assert schema.field(1).metadata == {b"Extension": b"Variant"}
    with pytest.raises(fl.FlightError, match="division by zero"):
        calls.call_function("databend:ratio", [1], [0])


def test_answers_equal_those_of_the_databend_server(server: ProcessServer) -> None:
    """The same function on Databend's published server and on ours has the same schema and the same answers."""

    @databend_udf.udf(input_types=["BIGINT NULL", "BIGINT NULL"], result_type="BIGINT NULL")
    def multiply(x: int, y: int) -> int:
        return None if x is None or y is None else x * y

    @databend_udf.udf(input_types=["VARCHAR NULL"], result_type="VARCHAR NULL")
    def normalise(texts: str) -> str:
        return None if texts is None else texts.strip().lower()

    theirs = databend_udf.UDFServer("127.0.0.1:0")
    try:
        for function in (multiply, normalise):
            theirs.add_function(function)
        other, ours = UDFClient("127.0.0.1", theirs.port), UDFClient("127.0.0.1", server.flight.port)
        for name, arguments in (("multiply", ([1, None, 3], [4, 5, 6])), ("normalise", ([" A", None, "b "],))):
            mine, his = ours.get_function_info(f"databend:{name}").schema, other.get_function_info(name).schema
            assert mine.types == his.types
            assert mine.metadata == his.metadata
            assert [field.nullable for field in mine] == [field.nullable for field in his]
            assert ours.call_function(f"databend:{name}", *arguments) == other.call_function(name, *arguments)
    finally:
        theirs.shutdown()


@pytest.mark.slow
def test_answers_equal_those_of_the_arrow_udf_server(client: Any) -> None:
    """The same function on arrow-udf's published server and on ours has the same schema and the same answers."""
    with contextlib.ExitStack() as stack:
        try:
            port = stack.enter_context(arrow_udf_server())
        except NotInstalledError as error:
            pytest.skip(str(error))
        other = stack.enter_context(fl.connect(f"grpc://127.0.0.1:{port}"))
        assert [each.body.to_pybytes() for each in other.do_action("protocol_version")] == [b"\x02"]
        for name, columns in (
            ("multiply", [pa.array([1, None]), pa.array([3, 4])]),
            ("series", [pa.array([2, 0, 1], pa.int32())]),
            ("total", [pa.array([[1, 2], None, []], pa.list_(pa.int64()))]),
            ("tagged", None),
        ):
            ours, theirs = described(client, name), described(other, name)
            assert [(each.type, _metadata(each)) for each in ours.schema] == [
                (each.type, _metadata(each)) for each in theirs.schema
            ]
            assert ours.total_records == theirs.total_records
            if columns is not None:
                assert call(client, name, *columns).equals(call(other, name, *columns))


def _metadata(field: pa.Field) -> dict[bytes, bytes]:
    """The metadata of a field without empty values."""
    return {key: value for key, value in (field.metadata or {}).items() if value}


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_answers_equal_the_recorded_ones_of_arrow_udf(client: Any, name: str) -> None:
    """What arrow-udf's published server said of the same functions and answered is what ours says and answers."""

    def plain(field: pa.Field) -> tuple[str, pa.DataType, dict[bytes, bytes]]:
        return field.name, field.type, _metadata(field)

    recorded_streams = RECORDED[name]
    theirs, info = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(recorded_streams["schema"]))), described(client, name)
    assert [plain(each)[1:] for each in info.schema] == [plain(each)[1:] for each in theirs]
    assert plain(info.schema.field(len(theirs) - 1)) == plain(theirs.field(len(theirs) - 1))
    assert info.total_records == recorded_streams["total_records"]
    if "answer" in recorded_streams:
        with pa.ipc.open_stream(bytes.fromhex(recorded_streams["asked"])) as request_stream:
            columns = [column.combine_chunks() for column in request_stream.read_all().columns]
        with pa.ipc.open_stream(bytes.fromhex(recorded_streams["answer"])) as answer_stream:
            assert call(client, name, *columns).equals(answer_stream.read_all())


def _part(field: int, content: bytes) -> bytes:
    def varint(number: int) -> bytes:
        result = bytearray()
        while number > 0x7F:
            result.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*result, number])

    return varint(field << 3 | 2) + varint(len(content)) + content


def _flight_data(message: bytes, path: str) -> bytes:
    """A FlightData with the descriptor that arrow-udf's Rust client puts on every message."""
    size = int.from_bytes(message[4:8], "little")
    header, body = message[8 : 8 + size], message[8 + size :]
    descriptor = b"\x08\x01" + _part(3, path.encode())
    return _part(1, descriptor) + _part(2, header) + (_part(1000, body) if body else b"")


def test_a_recorded_stream_is_answered(server: ProcessServer) -> None:
    """The bytes of arrow-udf's Rust client, with a descriptor on every message and empty names, are answered."""
    with grpc.insecure_channel(f"127.0.0.1:{server.flight.port}") as channel:
        exchange = channel.stream_stream(_EXCHANGE)
        messages = [_flight_data(message, "multiply") for message in (_SCHEMA, _BATCH, _BATCH)]
        answers = list(exchange(iter(messages), timeout=PATIENCE_S))
    assert len(answers) == 3, "the schema, and one batch for each"
    assert b"multiply" in answers[0]
    assert answers[1] == answers[2]
    assert (15).to_bytes(8, "little") in answers[1]


def test_headers_come_before_the_rows(server: ProcessServer) -> None:
    """The answer begins while the function still works, because engines wait five seconds for that only."""
    release = threading.Event()

    def messages() -> Iterator[bytes]:
        yield _flight_data(_SCHEMA, "multiply")
        release.wait(PATIENCE_S)
        yield _flight_data(_BATCH, "multiply")

    with grpc.insecure_channel(f"127.0.0.1:{server.flight.port}") as channel:
        exchange_call = channel.stream_stream(_EXCHANGE)(messages(), timeout=DEADLINE_S)
        assert (
            exchange_call.initial_metadata() is not None
        )  # waits for the headers, which come before the batch is sent
        release.set()
        assert len(list(exchange_call)) == 2


def test_a_drain_ends_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that waits is ended after a while, one that works has its answer first, and no further row is taken."""
    may_begin, may_end, seen = threading.Event(), threading.Event(), []

    @udf(compile=False)
    def slowly(x: int) -> int:
        seen.append(x)
        if x == 2:
            may_begin.set()
            may_end.wait(PATIENCE_S)
        return x

    monkeypatch.setattr(exchanges, "_LEAVE_S", 0.2)
    with serving(slowly) as server, ThreadPoolExecutor(1) as threads, fl.connect(server.url) as client:
        streams = [client.do_exchange(fl.FlightDescriptor.for_path("slowly")) for _ in range(3)]
        for place, (writer, _) in enumerate(streams):
            writer.begin(pa.schema([("x", pa.int64())]))
            writer.write_batch(pa.record_batch([pa.array([place])], ["x"]))
        (_, drain_error), (_, ends), (works, answers) = streams
        assert drain_error.read_chunk().data.to_pydict() == {"slowly": [0]}
        assert ends.read_chunk().data.to_pydict() == {"slowly": [1]}
        assert may_begin.wait(PATIENCE_S)
        drain_future = threads.submit(server.drain)
        with pytest.raises(fl.FlightUnavailableError, match="DRAINING"):
            drain_error.read_chunk()
        assert not drain_future.done()
        works.write_batch(pa.record_batch([pa.array([3])], ["x"]))
        may_end.set()
        assert answers.read_chunk().data.to_pydict() == {"slowly": [2]}
        with pytest.raises(fl.FlightUnavailableError, match=r"DRAINING.*send these rows to another server"):
            answers.read_chunk()
        assert drain_future.result(PATIENCE_S)
        assert sorted(seen) == [0, 1, 2]
        for writer, _ in streams:
            with contextlib.suppress(fl.FlightError):
                writer.close()


def test_a_call_is_counted_with_its_rows_and_time(server: ProcessServer, client: Any) -> None:
    """Calls of other engines are exchanges like any: they are counted, and free what they held."""
    before = server.metrics.registry.get_sample_value("foldflight_rows_total")
    call(client, "multiply", pa.array([1, 2]), pa.array([3, 4]))
    assert eventually(lambda: server.flight.active == 0)
    assert server.metrics.registry.get_sample_value("foldflight_rows_total") == before + 2


def test_an_inner_error_is_not_told_as_a_bad_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that cannot be read are the caller's; any other exception passes, as it is no mistake of the caller."""
    same = udf(input_types=["BIGINT"], result_type="BIGINT", name="same")(lambda x: x)
    function = Registry.load([same])["same"]
    call = stateless_calls.ScalarCall(RisingWave(), function, pa.schema({"x": pa.int64()}))

    def mistaken(*_: object) -> None:
        raise AttributeError("mistake")

    monkeypatch.setattr(stateless_calls, "_from_wire", mistaken)
    with pytest.raises(AttributeError, match="mistake"):
        call._argument(0, pa.array([1]))
