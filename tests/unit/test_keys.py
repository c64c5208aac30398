"""KeyIndex compared with a dict of Python values."""

from __future__ import annotations

import datetime as dt
import decimal
import importlib.util
import math
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight.engine.keys import index
from foldflight.engine.keys import index as index_module
from foldflight.engine.keys.hashes import key_hashes
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.keys.keytables import KeyLoops, NumberTable, TextTable
from foldflight.engine.query.layout import QueryLayout
from foldflight.errors import RejectedError
from foldflight.ext.compiler import keyloops
from foldflight.fold.accelerator import COMPILER
from foldflight.functions.types.arrow import JSON
from tests.effort import examples

NAN = float("nan")
DAY = dt.date(2013, 1, 2)
NOON = dt.datetime(2013, 1, 2, 12)

SAMPLES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [0, 1, -128, 127],
    pa.int64(): [0, 1, -(2**63), 2**63 - 1],
    pa.uint64(): [0, 1, 2**64 - 1],
    pa.float32(): [0.0, -0.0, 1.5, NAN, math.inf],
    pa.float64(): [0.0, -0.0, 1e-300, NAN, -math.inf],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "ä", "b"],
    pa.large_string(): ["", "a"],
    pa.binary(): [b"", b"\0", b"a"],
    pa.binary(2): [b"ab", b"cd"],
    pa.decimal128(10, 2): [decimal.Decimal("1.00"), decimal.Decimal("-1.00"), decimal.Decimal("0.01")],
    pa.decimal256(60, 2): [decimal.Decimal("1.00"), decimal.Decimal("1e40")],
    pa.date32(): [DAY, dt.date(1969, 1, 1)],
    pa.time64("us"): [dt.time(1), dt.time(2)],
    pa.timestamp("us"): [NOON, NOON + dt.timedelta(microseconds=1)],
    pa.timestamp("us", "UTC"): [NOON.replace(tzinfo=dt.UTC)],
    pa.duration("us"): [dt.timedelta(1), dt.timedelta(0)],
    pa.null(): [],
    pa.list_(pa.float64()): [[], [0.0], [-0.0], [NAN], [NAN, None]],
    pa.struct([("a", pa.int32()), ("b", pa.float64())]): [{"a": 1, "b": 0.0}, {"a": 1, "b": -0.0}, {"a": 1, "b": NAN}],
    pa.map_(pa.string(), pa.int32()): [[("a", 1)], [("a", 2)], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)], []],
    pa.month_day_nano_interval(): [pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([1, 2, 4])],
    pa.list_(pa.decimal128(30, 2)): [
        [],
        [None],
        [decimal.Decimal(1)],
        [decimal.Decimal(1), None],
        [decimal.Decimal("1e25")],
    ],
    pa.list_(pa.list_(pa.string())): [[], [[]], [None], [["a"], ["b"]], [["a", "b"]], [[""]], [["", ""]]],
    pa.list_(pa.bool_(), 2): [[True, False], [False, True], [None, True]],
    pa.large_list(pa.int8()): [[1, 2], [1], [2, 1]],
    pa.list_(pa.struct([("a", pa.date32()), ("b", pa.null())])): [
        [{"a": DAY, "b": None}],
        [{"a": None, "b": None}],
        [None],
    ],
    pa.struct([]): [{}],
    pa.struct([("a", pa.struct([])), ("b", pa.list_(pa.binary(2)))]): [
        {"a": {}, "b": [b"ab"]},
        {"a": None, "b": [b"ab"]},
    ],
}


def same(value: Any) -> Any:
    """Return a value that is equal for values of one SQL group: one NaN, one zero."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((name, same(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(same(each) for each in value)
    return value


def oracle(batches: list[list[tuple[Any, ...]]]) -> list[list[int]]:
    """Return the slots of batches of key tuples, by a dict."""
    slots: dict[Any, int] = {}
    return [[slots.setdefault(same(key), len(slots)) for key in batch] for batch in batches]


@st.composite
def keyed_batches(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[tuple[Any, ...]]]]:
    """Draw one to three key columns of any type and some batches of their values, NULL among them."""
    types = draw(st.lists(st.sampled_from(list(SAMPLES)), min_size=1, max_size=3))
    key = st.tuples(*[st.sampled_from([None, *SAMPLES[type_]]) for type_ in types])
    return types, draw(st.lists(st.lists(key, max_size=12), max_size=4))


@given(keyed_batches())
def test_slots_equal_those_of_a_dict(example: tuple[list[pa.DataType], list[list[tuple[Any, ...]]]]) -> None:
    """Slots for any types and batches equal a dict's numbers, and `keys` returns the keys."""
    types, batches = example
    schema = pa.schema([(f"k{place}", type_) for place, type_ in enumerate(types)])
    index = KeyIndex(schema)
    result = []
    for batch in batches:
        columns = [pa.array([row[place] for row in batch], type_) for place, type_ in enumerate(types)]
        result.append(index.slots(columns).to_pylist())
    expected = oracle(batches)
    assert result == expected
    first = {
        slot: same(key)
        for rows, slots in zip(batches, expected, strict=True)
        for key, slot in zip(rows, slots, strict=True)
    }
    keys = index.keys()
    assert keys.schema == schema
    assert [same(tuple(row)) for row in zip(*[column.to_pylist() for column in keys.columns], strict=True)] == [
        first[slot] for slot in range(len(index))
    ]


@st.composite
def many_keys(draw: st.DrawFn) -> tuple[pa.DataType, list[pa.Array]]:
    """Draw some batches of up to some thousand keys of one type: dense, sparse, few or many, with NULLs or not."""
    type_ = draw(st.sampled_from([pa.int64(), pa.string(), pa.decimal128(38, 0)]))
    batches = []
    for _ in range(draw(st.integers(1, 5))):
        rng = random.Random(draw(st.integers(0, 99)))
        most, step = draw(st.sampled_from([(50, 1), (5_000, 1), (5_000, 1 << 40), (5_000, -3)]))
        low = draw(st.sampled_from([0, 7, -100, -(1 << 50)]))
        numbers = [low + step * rng.randrange(most) for _ in range(draw(st.sampled_from([1, 300, 6_000])))]
        values: list[Any] = [decimal.Decimal(each) for each in numbers] if pa.types.is_decimal(type_) else numbers
        if type_ == pa.string():
            values = [f"{each}/{'x' * (each % 200)}" for each in numbers]
        if draw(st.booleans()):
            values[rng.randrange(len(values))] = None
        batches.append(pa.array(values, type_))
    return type_, batches


@cache
def compiled_loops() -> Mapping[str, Any]:
    loops = COMPILER.load().key_loops("user")
    assert loops is not None
    return loops


class Hot:
    """Compiled loops that pay from a number of rows on."""

    def __init__(self, rows: int) -> None:
        self.left = rows

    def when_hot(self, rows: int) -> Any:
        self.left -= rows
        return compiled_loops() if self.left < 0 else None


@pytest.mark.every_turn
@examples(60)
@given(many_keys(), st.sampled_from([0, 2_000, 10_000, 1 << 40]))
def test_slots_of_many_keys_equal_those_of_a_dict(example: tuple[pa.DataType, list[pa.Array]], hot_rows: int) -> None:
    """However keys lie, however many come, and whenever compiled loops take over, slots are those that a dict gives."""
    type_, batches = example
    index = KeyIndex(pa.schema([("k", type_)]), Hot(hot_rows))
    result = [index.slots([batch]).to_pylist() for batch in batches]
    assert result == oracle([[(key,) for key in batch.to_pylist()] for batch in batches])
    assert len(index) == len(index.keys()) == max(map(max, result)) + 1


def test_compiled_loops_take_over_when_they_pay() -> None:
    """A process does not compile for few keys; after many, compiled loops have the hash tables."""
    loops = KeyLoops()
    index = KeyIndex(pa.schema([("k", pa.string())]), loops)
    keys = pa.array([f"key {number}" for number in range(1 << 11)])
    index.slots([keys])
    assert loops.when_hot(0) is None
    compiled_loops = loops.when_hot(1 << 22)
    assert index.slots([keys]).to_pylist() == list(range(1 << 11))
    assert compiled_loops is not None
    assert sorted(compiled_loops) == ["dense", "insert_numbers", "insert_texts", "numbers", "texts"]


UNCOMPILED = """
import numpy as np, pyarrow as pa
from foldflight.engine.keys.keytables import KeyLoops
from foldflight.engine.keys.index import KeyIndex

loops = KeyLoops()
loops.when_hot(1 << 22)
index = KeyIndex(pa.schema([("k", pa.int64())]), loops)
numbers = pa.array(np.arange(2_000) << 40)
assert [index.slots([numbers]).to_pylist() for _ in range(2)] == [list(range(2_000))] * 2
"""


def test_keys_are_found_where_loops_cannot_be_compiled() -> None:
    """With NUMBA_DISABLE_JIT each function is interpreted; keys are found with NumPy, and the log says so once."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run(
        [sys.executable, "-c", UNCOMPILED], env=environment, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr.count("without compiled loops")) == (0, 1), run.stderr


@pytest.mark.parametrize("step", [1, 1 << 20, 1 << 32, 1 << 48, -(1 << 57)])
def test_lookups_stay_short_however_numbers_lie(step: int) -> None:
    """Numbers that differ in few bits are spread over the table: none is far from where its search begins."""
    numbers = np.arange(4000, dtype=np.int64) * np.int64(step)
    table = NumberTable(compiled_loops(), index._SEED, np.unique(numbers))
    used_cells = np.flatnonzero(table._cells)
    begins = index._mix(table._table_keys[table._cells[used_cells].astype(np.int64) - 1].view(np.uint64))
    assert int(((used_cells - begins.astype(np.int64)) % len(table._cells)).max()) < 64


@pytest.mark.parametrize(
    "pattern", ["{}", "{:08d}", "key {}", "{}, the same from here on", "a long text before {:06d}"]
)
def test_lookups_of_texts_stay_short_however_they_differ(pattern: str) -> None:
    """Texts that differ in few bytes, wherever those are, are spread over the table, and their hashes differ."""
    table = TextTable(compiled_loops(), index._SEED)
    table.ids(*index._parts(pa.array([pattern.format(number) for number in range(4000)], pa.large_binary())))
    used_cells = np.flatnonzero(table._cells)
    hashes = table._hashes[(table._cells[used_cells] & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1]
    begins = (hashes & np.uint64(len(table._cells) - 1)).astype(np.int64)
    assert int(((used_cells - begins) % len(table._cells)).max()) < 64
    assert len(np.unique(hashes)) == 4000


@pytest.mark.parametrize("kind", ["texts", "numbers"])
def test_tables_larger_than_a_cache_give_the_same_ids(kind: str) -> None:
    """Large tables read keys ahead. Their ids equal a dict's, with texts of any length, also the empty one."""
    random_values = np.random.default_rng(0).integers(0, 3 * keyloops._LARGE, 8 * keyloops._LARGE).tolist()
    keys: list[Any] = [each << 40 for each in random_values]
    if kind == "texts":
        keys = [str(each) * (each % 4) for each in random_values] + [""]
    schema = pa.schema([("k", pa.string() if kind == "texts" else pa.int64())])
    index, column = KeyIndex(schema, Hot(0)), pa.array(keys)
    known_values: dict[Any, int] = {}
    expected = [known_values.setdefault(key, len(known_values)) for key in keys]
    assert len(known_values) > keyloops._LARGE
    for start in range(0, len(keys), 5_000):
        assert index.slots([column.slice(start, 5_000)]).to_pylist() == expected[start : start + 5_000]


@pytest.mark.parametrize("hot_rows", [0, 1 << 40], ids=["compiled", "not compiled"])
def test_pairs_keep_their_ids_when_more_values_come(hot_rows: int) -> None:
    """The number that stands for a pair becomes wider with the values of its second column; ids stay."""
    rng = random.Random(0)
    batches = [
        [(rng.randrange(40), rng.randrange(most)) for _ in range(rows)]
        for most, rows in ((1, 5), (3, 300), (200, 3_000), (1 << 20, 6_000), (2, 100))
    ]
    index = KeyIndex(pa.schema([("a", pa.int64()), ("b", pa.int64())]), Hot(hot_rows))
    result = [index.slots([pa.array(column) for column in zip(*batch, strict=True)]).to_pylist() for batch in batches]
    assert result == oracle(batches)


def test_compiled_loops_compare_texts_with_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts whose hashes are equal are told apart, and found again. The loop is run as Python, with such a hash."""
    monkeypatch.setattr(keyloops, "_hash", lambda _data, _start, size, _seed: np.uint64(size << 40))
    monkeypatch.setattr(keyloops, "_is_same", keyloops._is_same.py_func)
    loops = {"texts": keyloops._texts, "insert_texts": keyloops._insert_texts}
    table = TextTable(loops, np.uint64(0))
    texts = [text for number in range(40) for text in (f"{number}", f"{number} is a longer text")]
    encoded_texts = pa.array([*texts, "", *texts], pa.large_binary())
    ids, firsts = table.ids(*index._parts(encoded_texts))
    assert ids.tolist() == [*range(81), *range(80)]
    assert firsts.tolist() == list(range(81))


@pytest.mark.parametrize("count", [3, 3000], ids=["few", "many"])
def test_texts_need_not_be_utf8(count: int) -> None:
    """A Spark string that is not UTF-8 can be a key, for any number of keys."""
    keys = [b"\xff" + each.to_bytes(2, "big") for each in range(count)]
    wild = pa.array(keys, pa.binary()).view(pa.string())
    index = KeyIndex(pa.schema([("key", pa.string())]))
    assert index.slots([wild]).to_pylist() == list(range(count))
    assert index.slots([wild[1:3]]).to_pylist() == [1, 2]
    assert index.keys().column("key").cast(pa.binary()).to_pylist() == keys


def test_keys_that_were_made_to_meet_do_not() -> None:
    """Numbers whose plain MurmurHash3 has the same lowest 24 bits are spread over the table."""
    ends_alike = (np.arange(4096, dtype=np.uint64) << np.uint64(24)) | np.uint64(5)
    words = ends_alike.copy()
    for factor in (index._MIX_2, index._MIX_1):
        words ^= words >> np.uint64(33)
        words *= np.uint64(pow(int(factor), -1, 1 << 64))
    words ^= words >> np.uint64(33)
    places = index._mix(words) & np.uint64((1 << 24) - 1)
    assert len(np.unique(places)) > 4000


def test_the_seed_of_hashes_is_not_pythons() -> None:
    """Spark sets PYTHONHASHSEED=0 in its workers, so a seed derived from it would be known to everybody."""
    again = importlib.util.spec_from_file_location("encoders_again", index.__file__)
    assert again is not None
    assert again.loader is not None
    module = importlib.util.module_from_spec(again)
    again.loader.exec_module(module)
    assert module._SEED != index._SEED


def test_texts_with_one_hash_are_different_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys with equal hashes are compared, in one batch and across batches."""
    monkeypatch.setattr(
        index_module, "_hash_texts", lambda texts: np.array([int(each) % 500 for each in texts.to_pylist()], np.uint64)
    )
    index = KeyIndex(pa.schema([("k", pa.string())]))
    batches = [[str(number * factor) for number in range(1200)] for factor in (1, 7, 1001)]
    result = [index.slots([pa.array(batch)]).to_pylist() for batch in [*batches, *batches]]
    assert result == oracle([[(key,) for key in batch] for batch in [*batches, *batches]])


def test_the_first_null_may_come_anywhere() -> None:
    """NULL gets its slot in the order of first appearance, before, between and after other new keys."""
    for batch, expected in (
        ([None, 5, 5, 6], [0, 1, 1, 2]),
        ([5, None, 6, None], [0, 1, 2, 1]),
        ([5, 6, None], [0, 1, 2]),
    ):
        index = KeyIndex(pa.schema([("k", pa.int64())]))
        assert index.slots([pa.array(batch)]).to_pylist() == expected
        assert index.slots([pa.array([7, None, 5])]).to_pylist()[0] == 3
        assert index.keys().column("k").to_pylist() == [*dict.fromkeys(batch), 7]


def test_sliced_columns_are_read_from_their_offset() -> None:
    """Columns with an offset into their buffers are read from there."""
    for values in (list("abcdef"), [1, 2, 3, 4, 5, 6], [decimal.Decimal(each) for each in range(6)], [True, False] * 3):
        column = pa.array(values)
        index = KeyIndex(pa.schema([("k", column.type)]))
        index.slots([column[:1]])
        assert index.slots([column[2:5]]).to_pylist() == oracle([[(values[0],)], [(each,) for each in values[2:5]]])[1]


def test_null_nan_and_zero_are_one_group_each() -> None:
    """NULL, any NaN and either zero are one group each, and are returned in canonical form."""
    index = KeyIndex(pa.schema([("x", pa.float64())]))
    bits = pa.array([0x7FF8000000000001, -1, 0x7FF8000000000000]).view(pa.float64())
    assert index.slots([bits]).to_pylist() == [0, 0, 0]
    assert index.slots([pa.array([-0.0, 0.0, None, NAN])]).to_pylist() == [1, 1, 2, 0]
    assert [repr(value) for value in index.keys().column("x").to_pylist()] == ["nan", "0.0", "None"]


NESTED = [
    (pa.list_(pa.float64()), [[-0.0, None], None, [NAN], []]),
    (pa.list_(pa.float32(), 2), [[-0.0, 1.0], None, [NAN, None]]),
    (pa.struct([("a", pa.float64()), ("b", pa.list_(pa.struct([("c", pa.float32())])))]), [{"a": -0.0, "b": [None]}]),
    (pa.struct([("a", pa.float64()), ("b", pa.list_(pa.struct([("c", pa.float32())])))]), [None, {"b": [{"c": -0.0}]}]),
    (pa.map_(pa.string(), pa.float64()), [[("x", -0.0)], None, [("y", None)]]),
]


@pytest.mark.parametrize(("type_", "values"), NESTED)
def test_floats_within_keys_are_canonical(type_: pa.DataType, values: list[Any]) -> None:
    """Structs, lists and maps are returned without -0.0, also if their columns have an offset."""
    column = pa.array(values, type_)
    for part in (column, column[1:], column[:1], column[:0]):
        index = KeyIndex(pa.schema([("k", type_)]))
        index.slots([part])
        result = index.keys().column("k")
        result.validate(full=True)
        assert repr(result.to_pylist()) == repr(part.to_pylist()).replace("-0.0", "0.0")


def test_keys_of_any_slots_are_returned() -> None:
    """`keys` accepts slots in any order, repeated, before and after more keys."""
    index = KeyIndex(pa.schema([("a", pa.string()), ("b", pa.int32())]))
    index.slots([pa.array(["x", "y"]), pa.array([1, None], pa.int32())])
    assert index.keys(pa.array([1, 0, 1], pa.int32())).to_pylist() == [
        {"a": "y", "b": None},
        {"a": "x", "b": 1},
        {"a": "y", "b": None},
    ]
    index.slots([pa.array(["z"]), pa.array([3], pa.int32())])
    assert index.keys(pa.array([2], pa.int32())).to_pylist() == [{"a": "z", "b": 3}]
    assert len(index) == 3


def test_many_columns_do_not_overflow() -> None:
    """Codes of many columns with many distinct values are combined without overflow."""
    schema = pa.schema([(f"k{place}", pa.int64()) for place in range(12)])
    index = KeyIndex(schema)
    rows = 5_000
    columns = [pa.array([(row * (place + 3)) % rows for row in range(rows)]) for place in range(12)]
    assert index.slots(columns).to_pylist() == list(range(rows))
    assert index.slots(columns).to_pylist() == list(range(rows))


def test_empty_batches_have_no_slots() -> None:
    """An empty batch gives no slots, and an index without keys gives an empty batch."""
    index = KeyIndex(pa.schema([("a", pa.string()), ("n", pa.null())]))
    assert index.slots([pa.array([], pa.string()), pa.nulls(0)]).to_pylist() == []
    assert index.keys().num_rows == 0
    assert len(index) == 0


def test_wrong_columns_are_refused() -> None:
    """Columns of another number or type, and an index of no columns, are SCHEMA_MISMATCH."""
    index = KeyIndex(pa.schema([("a", pa.int64())]))
    for columns in ([], [pa.array(["x"])]):
        with pytest.raises(RejectedError) as excinfo:
            index.slots(columns)
        assert excinfo.value.code == "SCHEMA_MISMATCH"
    with pytest.raises(RejectedError):
        KeyIndex(pa.schema([]))


HAS_VIEWS = hasattr(pa, "string_view")  # since Arrow 16


@pytest.mark.parametrize(
    "type_",
    [
        *([pa.string_view(), pa.binary_view(), pa.struct([("a", pa.list_(pa.string_view()))])] if HAS_VIEWS else []),
        pa.dictionary(pa.int32(), pa.string()),
        pa.run_end_encoded(pa.int32(), pa.int64()),
    ],
    ids=str,
)
def test_keys_have_the_types_that_arguments_have(type_: pa.DataType) -> None:
    """Types that arguments refuse, because Arrow does not validate them, are refused as keys, before any row."""
    with pytest.raises(
        RejectedError, match=r"the key city: the Arrow type .* is not accepted, only plain types"
    ) as excinfo:
        KeyIndex(pa.schema([("city", type_)]))
    assert excinfo.value.code == "SCHEMA_MISMATCH"


def test_lists_of_a_fixed_size_within_another_are_no_keys() -> None:
    """Arrow's `take` and `filter` return items of other rows for slices of such a type, also within a member."""
    pairs = pa.list_(pa.list_(pa.int64(), 2), 2)
    for type_ in (pairs, pa.struct([("a", pa.list_(pairs))])):
        with pytest.raises(RejectedError, match=r"the key city has the type .*cast it to lists of any size") as excinfo:
            KeyIndex(pa.schema([("city", type_)]))
        assert excinfo.value.code == "SCHEMA_MISMATCH"
    assert KeyIndex(pa.schema([("city", pa.list_(pa.list_(pa.int64(), 2)))])) is not None


@pytest.mark.skipif(not HAS_VIEWS, reason="Arrow has views since 16")
def test_views_behind_null_are_no_keys() -> None:
    """A view that points nowhere passes Arrow's validation behind a NULL: it is refused before it is read."""
    wild = np.array([100, 0, 7, 1 << 30], np.int32)
    views = pa.py_buffer(wild.tobytes())
    column = pa.Array.from_buffers(pa.binary_view(), 1, [pa.py_buffer(b"\x00"), views])
    column.validate(full=True)
    with pytest.raises(RejectedError, match="the key k: the Arrow type binary_view"):
        KeyIndex(pa.schema([("k", column.type)])).slots([column])


LATE = pa.array([2**22, 2**22, None], pa.int32()).view(pa.date32())


def test_a_date_beyond_9999_within_a_nested_key_has_no_hash() -> None:
    """Nested keys are hashed as Python's values, and Python has no such date; the error has a remedy."""
    nested_key = pa.StructArray.from_arrays([LATE], ["day"])
    for key in (LATE, nested_key):
        assert KeyIndex(pa.schema([("key", key.type)])).slots([key]).to_pylist() == [0, 0, 1]
    with pytest.raises(RejectedError, match=r"STRUCT<day DATE>.*beyond the year 9999; group by its members") as excinfo:
        key_hashes(pa.RecordBatch.from_arrays([nested_key], ["key"]))
    assert excinfo.value.code == "SCHEMA_MISMATCH"


def test_a_struct_with_two_fields_of_one_name_has_no_hash() -> None:
    """Python has no object for it, so a state table cannot place it; the error tells that."""
    array = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(RejectedError, match="a struct with two fields of one name; group by its members") as excinfo:
        key_hashes(pa.RecordBatch.from_arrays([array], names=["key"]))
    assert excinfo.value.code == "SCHEMA_MISMATCH"


@pytest.mark.skipif(JSON is None, reason="Arrow has JSON since 19")
def test_json_within_a_key_is_text() -> None:
    """Its texts are compared, not their meaning."""
    json_array = pa.ExtensionArray.from_storage(JSON, pa.array(["{}", "{ }", "{}", None]))
    key = pa.StructArray.from_arrays([json_array], ["a"])
    assert KeyIndex(pa.schema([("key", key.type)])).slots([key]).to_pylist() == [0, 1, 0, 2]


def test_errors_name_a_group_of_a_date_beyond_9999() -> None:
    """The key is shown as a text, where Python has no such date."""
    layout = QueryLayout(pa.schema([("key", LATE.type)]), ("day",), pa.schema([]), (), has_kinds=False)
    assert layout.group(pa.RecordBatch.from_arrays([LATE[:1]], ["key"])) == {"day": "13453-08-13"}


@pytest.mark.parametrize("many", [False, True])
def test_texts_with_a_dictionary_have_the_slots_of_texts_without(many: bool) -> None:
    """Texts with a dictionary have the slots of the same texts without one, whatever their dictionaries are."""
    rng = random.Random(1)
    texts = [None, "", *(f"text {number}" for number in range(5_000 if many else 5))]
    plain, encoded_index = (KeyIndex(pa.schema([("s", pa.string()), ("n", pa.int64())])) for _ in range(2))
    for _ in range(4):
        values = pa.array(rng.choices(texts, k=3_000), pa.string())
        numbers = pa.array(rng.choices([1, 2], k=3_000), pa.int64())
        entries = rng.sample(texts[1:], len(texts) - 1) * 2  # all twice, of which rows have some
        at = {
            text: rng.choice([first, first + len(entries) // 2]) for first, text in enumerate(entries[: len(texts) - 1])
        }
        indexes = pa.array([None if text is None else at[text] for text in values.to_pylist()], pa.int32())
        values_of_dictionary = pa.DictionaryArray.from_arrays(indexes, pa.array(entries))
        assert encoded_index.slots([values_of_dictionary[7:], numbers[7:]]) == plain.slots([values[7:], numbers[7:]])
    assert encoded_index.keys() == plain.keys()
    with pytest.raises(RejectedError, match="the key s is string, and this column is dictionary"):
        plain.slots([pa.array(["a"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())), numbers[:1]])
