"""The tasks of Spark's workers without Spark: both plans, over any batches and bounds, equal one fold."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import FunctionError, Vector, connect, udaf
from foldflight.engine.batch import tasks
from foldflight.engine.batch.tasks import FinalFold, PartialFold
from foldflight.engine.keys import row_buffers
from foldflight.engine.keys.row_buffers import Overflow
from foldflight.engine.query.blocks import BlockBounds, gather
from foldflight.engine.query.layout import HASH, HostTypes, QueryLayout
from foldflight.engine.query.query import Query
from foldflight.functions import Call, parse_type
from foldflight.functions.types.arrow import with_column
from foldflight.functions.types.vectors import from_matrix
from foldflight.spark.storage_types import storage_type
from foldflight.spark.worker import use_local_folders
from tests.watched import Watched

TRANSPORT = connect("embedded:examples.weighted_avg").transport
KEYS = pa.schema([("key_0", pa.string()), ("key_1", pa.float64())])
COLUMNS = pa.schema([("column_0", pa.int64()), ("column_1", pa.int32())])
CARRIED = HostTypes(storage=storage_type, results=lambda _names, types: types)
CALLS = (Call("sum", ("v",)), Call("count"), Call("count", ("v",), distinct=True))
VALUES = st.tuples(
    st.sampled_from(["+I", "+I", "-D"]),
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0.0, -0.0, float("nan"), None, 1.0]),
    st.integers(-5, 5),
)
BOUNDS = st.builds(
    BlockBounds,
    rows_max=st.integers(1, 20),
    bytes_max=st.sampled_from([1, 200, 1 << 20]),
    groups_max=st.integers(1, 10),
    unfolded_groups_min=st.integers(1, 10),
    group_bytes_max=st.sampled_from([1, 1000, 1 << 20]),
    folded_bytes_max=st.sampled_from([1, 500, 1 << 20]),
)


def query_of(*, has_kinds: bool, bounds: BlockBounds | None = None) -> Query:
    """Return a query of three calls over two keys."""
    calls = {f"o{place}": call for place, call in enumerate(CALLS)}
    query = Query.of(TRANSPORT, calls, QueryLayout(KEYS, ("k", "x"), COLUMNS, ("v", "w"), has_kinds), types=CARRIED)
    return query if bounds is None else replace(query, bounds=bounds)


def batches_of(rows: list[tuple[Any, ...]], layout: QueryLayout, sizes: list[int]) -> list[pa.RecordBatch]:
    """Return rows in batches as from Spark, split anywhere."""
    kinds = {"+I": 0, "-D": 3}
    values = [
        {"key_0": key, "key_1": x, "kind": kinds[kind], "column_0": value, "column_1": 1}
        for kind, key, x, value in rows
    ]
    whole = pa.RecordBatch.from_pylist(values, schema=layout.rows)
    batches, start = [], 0
    for size in itertools.cycle(sizes):
        if start >= whole.num_rows:
            return batches
        batches.append(whole.slice(start, size))
        start += size
    return batches


def same(value: Any) -> Any:
    """Return a value that is equal for values of one SQL group."""
    return value if not isinstance(value, float) else "NaN" if math.isnan(value) else value + 0.0


def expected(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[int, int, int]]:
    """Return sum, count and distinct count of the live rows by key."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for kind, key, x, value in rows:
        if kind == "+I":
            groups[same(key), same(x)].append(value)
        else:
            groups[same(key), same(x)].remove(value)
    return {key: (sum(values), len(values), len(set(values))) for key, values in groups.items() if values}


def shuffle(batches: list[pa.RecordBatch], final: FinalFold) -> list[pa.RecordBatch]:
    """Return batches as after Spark's shuffle and sort: rows sorted by hash, several keys in each."""
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    keys = zip(table.column("key_0").to_pylist(), table.column("key_1").to_pylist(), strict=True)
    hashes = pa.array([hash((same(key), same(x))) % 4 - 2 for key, x in keys], pa.int64())
    table = table.append_column(HASH, hashes)
    order: list[tuple[str, str]] = [(HASH, "ascending")]
    if not final.merges and final.layout.has_kinds:
        order.append(("kind", "ascending"))  # inserts before deletes, as the plan has it
    return table.sort_by(order).to_batches(max_chunksize=3)


@pytest.fixture(autouse=True)
def small_first_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a partition of a few rows have several pieces."""
    monkeypatch.setattr(tasks, "_FIRST_ROWS", 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(VALUES, max_size=60),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    partitions=st.integers(1, 3),
    bounds=BOUNDS,
    has_kinds=st.booleans(),
    merges=st.booleans(),
)
def test_any_split_gives_the_same_groups(
    rows: list[tuple[Any, ...]], sizes: list[int], partitions: int, bounds: BlockBounds, has_kinds: bool, merges: bool
) -> None:
    """Rows in any batches and partitions, under any bounds, in one phase or two, give each group once and right."""
    if has_kinds:
        rows = [("+I", *row[1:]) for row in rows] + [row for row in rows if row[0] == "-D"]
    else:
        rows = [("+I", *row[1:]) for row in rows]
    query = query_of(has_kinds=has_kinds, bounds=bounds)
    final = FinalFold(query, merges=merges)
    arrived_batches: list[pa.RecordBatch] = []
    for number in range(partitions):
        batches = batches_of(rows[number::partitions], query.layout, sizes)
        if merges:
            batches = list(PartialFold(query, bounds)(batches))
        arrived_batches += batches
    result = [tuple(row.values()) for batch in final(shuffle(arrived_batches, final)) for row in batch.to_pylist()]
    assert len({(same(k), same(x)) for k, x, *_ in result}) == len(result)
    assert {(same(k), same(x)): tuple(outputs) for k, x, *outputs in result} == expected(rows)


def test_a_task_holds_one_block_of_groups() -> None:
    """However many groups a partition has, the last stage uses the slots of about one block."""
    query = query_of(has_kinds=False, bounds=BlockBounds(rows_max=100))
    rows = [("+I", f"key {number // 2:05}", 0.0, number) for number in range(4_000)]
    table = pa.Table.from_batches(batches_of(rows, query.layout, [70]))
    table = table.append_column(HASH, pa.array([number // 2 for number in range(4_000)], pa.int64()))
    final = FinalFold(query, merges=False)
    sizes = [batch.num_rows for batch in final(table.to_batches(max_chunksize=70))]
    assert sum(sizes) == 2_000
    assert max(sizes) <= 100


def test_rows_without_bytes_are_folded() -> None:
    """Rows with only a column of type NULL, which has no bytes, are counted in two phases."""
    layout = QueryLayout(pa.schema([("key_0", pa.null())]), ("k",), pa.schema([]), (), has_kinds=False)
    query = Query.of(TRANSPORT, {"n": Call("count")}, layout, types=CARRIED)
    rows = pa.RecordBatch.from_arrays([pa.nulls(5)], schema=query.layout.rows)
    assert [batch.column("live").to_pylist() for batch in PartialFold(query, BlockBounds())([rows])] == [[5]]


def test_an_error_names_a_key_that_is_not_utf8() -> None:
    """A key that is not UTF-8 is shown as bytes in the function's error."""
    query = query_of(has_kinds=False)
    wild = pa.array([b"\xff"] * 2, pa.binary()).view(pa.string())
    numbers = [pa.array([1.0] * 2), pa.array([2**63 - 1] * 2), pa.array([1] * 2, pa.int32())]
    rows = pa.RecordBatch.from_arrays([wild, *numbers], schema=query.layout.rows)
    rows = with_column(rows, HASH, pa.array([0, 0], pa.int64()))
    final = FinalFold(query, merges=False)
    with pytest.raises(FunctionError) as excinfo:
        list(final([rows]))
    assert (excinfo.value.code, excinfo.value.group) == ("OVERFLOW", {"k": b"\xff", "x": 1.0})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 30), max_size=10), st.integers(1, 40), st.integers(1, 400))
def test_blocks_hold_all_rows_in_order(sizes: list[int], rows_max: int, bytes_max: int) -> None:
    """Blocks hold all rows in order, none is empty, and none has more rows than the bound."""
    schema = pa.schema([("a", pa.int64())])
    numbers = itertools.count()
    batches = [
        pa.RecordBatch.from_arrays([pa.array(list(itertools.islice(numbers, size)), pa.int64())], schema=schema)
        for size in sizes
    ]
    bounds = BlockBounds(rows_max=rows_max, bytes_max=bytes_max)
    blocks = list(gather(batches, schema, bounds))
    assert [value for block in blocks for value in block.column(0).to_pylist()] == list(range(sum(sizes)))
    assert all(0 < block.num_rows <= rows_max for block in blocks)


def partial_of(groups: npt.NDArray[np.int64], transport: Any, function: str, **bounds: Any) -> list[pa.RecordBatch]:
    """Return what the first stage makes of rows with these keys and the value 1, in batches of 1,000 rows."""
    layout = QueryLayout(
        pa.schema([("key_0", pa.int64())]), ("k",), pa.schema([("column_0", pa.int64())]), ("v",), False
    )
    query = Query.of(transport, {"o": Call(function, ("v",))}, layout, types=CARRIED)
    rows = pa.RecordBatch.from_arrays([pa.array(groups), pa.array(np.ones_like(groups))], schema=query.layout.rows)
    batches = [rows.slice(start, 1_000) for start in range(0, len(groups), 1_000)]
    return list(PartialFold(query, BlockBounds(rows_max=10_000, unfolded_groups_min=1_000, **bounds))(batches))


def folded_rows(batches: list[pa.RecordBatch]) -> tuple[int, int]:
    """Return the number of states and of unfolded rows."""
    states = sum(batch.column("folded").true_count for batch in batches)
    return states, sum(batch.num_rows for batch in batches) - states


def test_many_groups_are_folded_where_they_fit() -> None:
    """Groups of which most are new in each of the first blocks are folded all the same, because they come again."""
    groups = np.random.default_rng(1).integers(0, 40_000, 200_000)
    states, unfolded_rows = folded_rows(partial_of(groups, TRANSPORT, "sum"))
    assert (states, unfolded_rows) == (pytest.approx(40_000, rel=0.01), 0)


def test_groups_that_do_not_come_again_are_passed_on() -> None:
    """Rows that are all groups of their own are folded only until that is known."""
    states, unfolded_rows = folded_rows(partial_of(np.arange(200_000), TRANSPORT, "sum"))
    assert states <= 20_000
    assert states + unfolded_rows == 200_000


def test_groups_that_do_not_fit_are_passed_on() -> None:
    """Groups that would be emitted before they come again are not folded."""
    groups = np.random.default_rng(1).integers(0, 40_000, 200_000)
    states, unfolded_rows = folded_rows(partial_of(groups, TRANSPORT, "sum", group_bytes_max=100_000))
    assert states <= 20_000
    assert states + unfolded_rows == pytest.approx(200_000, rel=0.001)  # a few of the folded rows are of one group


def test_no_epoch_starts_after_the_last_rows() -> None:
    """A server is asked to forget the groups of an epoch only if rows of another one follow."""
    forgotten_counts: list[int] = []

    def note(operation: str, what: Any, _exchange: Any) -> None:
        if operation == "forget":
            forgotten_counts.append(len(what))

    transport = Watched(TRANSPORT, note)
    partial_of(np.array([1, 2, 1]), transport, "sum")
    assert forgotten_counts == []
    partial_of(np.arange(30_000) % 3, transport, "sum", folded_bytes_max=1)
    assert forgotten_counts == [3, 3]  # after the first and the second of three epochs


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class PlainSum:
    """A sum that only the interpreter folds."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> int:
        return accumulator


def test_objects_take_more_of_the_memory_than_numbers() -> None:
    """In the same bytes, a partial fold holds fewer groups of accumulators that are Python objects."""
    groups = np.repeat(np.arange(10_000), 4)
    sums = partial_of(groups, TRANSPORT, "sum", group_bytes_max=1_000_000)
    plain = partial_of(groups, connect(PlainSum).transport, "plain_sum", group_bytes_max=1_000_000)
    assert max(batch.num_rows for batch in sums) > 9_000
    assert max(batch.num_rows for batch in plain) < 1_000_000 // 256 < sum(batch.num_rows for batch in plain)


def test_states_leave_in_batches_of_bounded_size() -> None:
    """A partition of many groups does not become one batch."""
    batches = partial_of(np.repeat(np.arange(100_000), 2), TRANSPORT, "sum")
    assert max(batch.num_rows for batch in batches) == 1 << 16
    assert sum(batch.num_rows for batch in batches) == pytest.approx(100_000, abs=3)


@pytest.mark.parametrize("room", [50, 1_000, 1 << 20])
def test_states_are_merged_in_any_order(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage needs no order for states of bounded size, however few groups fit; others wait in files."""
    layout = QueryLayout(
        pa.schema([("key_0", pa.int64())]), ("k",), pa.schema([("column_0", pa.int64())]), ("v",), False
    )
    query = Query.of(TRANSPORT, {"o": Call("sum", ("v",)), "n": Call("count")}, layout, types=CARRIED)
    query = replace(query, bounds=BlockBounds(rows_max=100, groups_max=room))
    keys = np.random.default_rng(1).integers(0, 2_000, 6_000)
    rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(np.arange(6_000))], schema=query.layout.rows)
    states = PartialFold(query, replace(query.bounds, groups_max=300))([rows])
    final = FinalFold(query, merges=True)
    assert not final.needs_order
    hashed_batches = [
        # Hashes that agree in their low bits, and one that two keys share, are divided all the same.
        with_column(batch, HASH, pa.array((batch.column("key_0").to_numpy() // 2) << 6))
        for batch in states
    ]
    deepest = []
    monkeypatch.setattr(tasks, "Overflow", lambda schema, level: deepest.append(level) or Overflow(schema, level))
    batches = list(final(hashed_batches))
    result = {row["k"]: (row["o"], row["n"]) for batch in batches for row in batch.to_pylist()}
    assert sum(batch.num_rows for batch in batches) == len(result)
    assert result == {
        int(key): (int(np.arange(6_000)[keys == key].sum()), int((keys == key).sum())) for key in np.unique(keys)
    }
    assert max(deepest) == {50: 3, 1_000: 1, 1 << 20: 0}[room]


def test_keys_with_a_dictionary_take_the_memory_of_texts() -> None:
    """A scan gives texts as indexes. As many groups fit as with the texts themselves."""
    layout = QueryLayout(
        pa.schema([("key_0", pa.string())]), ("k",), pa.schema([("column_0", pa.int64())]), ("v",), False
    )
    query = Query.of(TRANSPORT, {"o": Call("sum", ("v",))}, layout, types=CARRIED)
    texts = pa.array([f"{number:0200}" for number in range(5_000)])
    encoded_texts = pa.DictionaryArray.from_arrays(pa.array(np.arange(20_000) % 5_000, pa.int32()), texts)
    for keys in (encoded_texts, encoded_texts.cast(pa.string())):
        rows = pa.RecordBatch.from_arrays([keys, pa.array(np.ones(20_000, np.int64))], names=query.layout.rows.names)
        batches = list(PartialFold(query, BlockBounds(group_bytes_max=500_000))([rows]))
        assert 1_000 < max(batch.num_rows for batch in batches) < 4_000
        assert sum(batch.num_rows for batch in batches) >= 20_000 * 0.9


def test_a_first_block_of_many_groups_is_folded() -> None:
    """A table of numbers has room for all groups, so their states are sent and not their rows."""
    layout = QueryLayout(
        pa.schema([("key_0", pa.int64())]), ("k",), pa.schema([("column_0", pa.int64())]), ("v",), False
    )
    query = Query.of(TRANSPORT, {"o": Call("sum", ("v",))}, layout, types=CARRIED)
    keys = np.random.default_rng(1).integers(0, 20_000, 100_000)
    rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys)], names=query.layout.rows.names)
    bounds = BlockBounds(rows_max=10_000, unfolded_groups_min=1_000, group_bytes_max=20_000 * 100)
    batches = list(PartialFold(query, bounds)(rows.slice(start, 10_000) for start in range(0, 100_000, 10_000)))
    assert sum(batch.num_rows for batch in batches) == len(np.unique(keys))


class Total:
    """A state of a fixed size."""

    total: Vector[4, np.float64]  # type: ignore[type-arg]


@udaf
class VectorTotal:
    def create_accumulator(self) -> Total:
        total = Total()
        total.total = np.zeros(4)
        return total

    def accumulate(self, acc: Total, v: Vector[4]) -> None:  # type: ignore[type-arg]
        acc.total += v

    def merge(self, acc: Total, other: Total) -> None:
        acc.total += other.total

    def get_value(self, acc: Total) -> Vector[4, np.float64]:  # type: ignore[type-arg]
        return acc.total


@pytest.mark.parametrize("room", [50, 1 << 20])
def test_vectors_leave_once_and_are_merged_in_any_order(room: int) -> None:
    """Their states have a known size: no rows are folded only to find it out, and nothing is sorted."""
    layout = QueryLayout(
        pa.schema([("key_0", pa.int64())]), ("k",), pa.schema([("column_0", parse_type("VECTOR(4)"))]), ("v",), False
    )
    query = Query.of(connect(VectorTotal).transport, {"o": Call("vector_total", ("v",))}, layout, types=CARRIED)
    query = replace(query, bounds=BlockBounds(rows_max=100, groups_max=room))
    keys = np.random.default_rng(1).integers(0, 1_000, 6_000)
    vectors = from_matrix(np.outer(np.arange(6_000), np.arange(4)).astype(np.float32), layout.columns.field(0).type)
    rows = pa.RecordBatch.from_arrays([pa.array(keys), vectors], schema=query.layout.rows)
    states = list(PartialFold(query, BlockBounds())([rows]))
    assert sum(batch.num_rows for batch in states) == len(np.unique(keys))
    final = FinalFold(query, merges=True)
    assert not final.needs_order
    hashed_batches = [with_column(batch, HASH, batch.column("key_0")) for batch in states for batch in (batch, batch)]
    result = [(row["k"], row["o"]) for batch in final(hashed_batches) for row in batch.to_pylist()]
    totals = np.bincount(keys, np.arange(6_000))
    expected = [(key, [2.0 * total * item for item in range(4)]) for key, total in enumerate(totals) if total]
    assert sorted(result) == expected


def test_files_are_in_the_folders_that_spark_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's folder may be small. The files have no names, so nothing is left of a task that is killed."""
    missing_path, system = tmp_path / "gone", Path(tempfile.gettempdir())
    for folders, expected in ((f"{missing_path},{tmp_path}", tmp_path), (str(missing_path), system), ("", system)):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folders)
        use_local_folders()
        with row_buffers.temporary_file() as file:
            assert Path(f"/proc/self/fd/{file.fileno()}").readlink().parent == expected
            assert not list(tmp_path.iterdir())


def test_states_that_grow_are_merged_in_order() -> None:
    """A state with a list or a text, and rows, need the order: their size is not known."""
    query = query_of(has_kinds=False)
    assert FinalFold(query, merges=True).needs_order  # count distinct keeps values
    assert FinalFold(query, merges=False).needs_order
