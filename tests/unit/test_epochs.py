"""`run_epochs` with little input: no keys, no columns, no rows, only NULL; and names that it uses itself."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from foldflight import FunctionError, RejectedError, connect, udaf
from foldflight.functions.types.arrow import JSON
from foldflight.testing import run_epochs, run_over, run_over_epochs

FUNCTIONS = connect("embedded:")


def changelogs(*epochs: list[Any], keys: list[str] | None = None, **aggregates: Any) -> list[Any]:
    return [epoch.changelog for epoch in run_epochs(aggregates, epochs, keys=keys or [])]


def test_calls_without_columns_and_queries_without_keys_are_folded() -> None:
    """Rows are counted without using a column, in each epoch, with and without row kinds."""
    count = FUNCTIONS["count"]
    rows = [[{"v": 1}, {"v": 2}], [("-D", {"v": 1})], [("-D", {"v": 2}), ("-D", {"v": 2})], []]
    epochs = run_epochs({"n": count()}, rows)
    assert [epoch.changelog for epoch in epochs] == [
        [("+I", {"n": 2})],
        [("-U", {"n": 2}), ("+U", {"n": 1})],
        [("-U", {"n": 1}), ("+U", {"n": 0})],
        [],
    ]
    assert [epoch.live[()] for epoch in epochs] == [2, 1, 0, 0]
    assert [epoch.ignored_retractions for epoch in epochs] == [0, 0, 1, 0]
    assert changelogs([{}, {}], n=count()) == [[("+I", {"n": 2})]]


def test_a_changelog_may_begin_in_its_middle() -> None:
    """In a group without rows the new row stays; the old one, which never came, is counted, or refused if strict."""
    total, different = FUNCTIONS["sum"], FUNCTIONS["count"]
    calls = {"total": total("v"), "n": different("v").distinct()}
    old, new = {"k": "ann", "v": 10}, {"k": "ann", "v": 40}
    for epoch in ([("-U", old), ("+U", new), ("+U", new)], [("+U", new), ("-U", old), ("+U", new)]):
        (result,) = run_epochs(calls, [epoch], keys=["k"])
        assert result.changelog == [("+I", {"k": "ann", "total": 80, "n": 1})]
        assert (result.live, result.ignored_retractions) == ({("ann",): 2}, 1)
        with pytest.raises(RejectedError, match="no equal row is accumulated") as excinfo:
            run_epochs(calls, [epoch], keys=["k"], strict=True)
        assert (excinfo.value.code, excinfo.value.group) == ("CANNOT_RETRACT", {"k": "ann"})
    (empty_epoch,) = run_epochs(calls, [[("+I", new), ("-D", new)]], keys=["k"], strict=True)
    assert (empty_epoch.changelog, empty_epoch.states, empty_epoch.ignored_retractions) == ([], {}, 0)
    # Only the columns that the query uses are compared, with its conditions.
    counts = {"n": FUNCTIONS["count"]()}
    (same,) = run_epochs(counts, [[("-U", old), ("+U", new)]], keys=["k"], strict=True)
    assert same.changelog == []
    counts["large"] = FUNCTIONS["count"]().where(lambda row: row["v"] > 20)
    (other,) = run_epochs(counts, [[("-U", old), ("+U", new)]], keys=["k"])
    assert (other.changelog, other.ignored_retractions) == ([("+I", {"k": "ann", "n": 1, "large": 1})], 1)


def test_strict_epochs_refuse_a_retraction_without_a_row() -> None:
    """The error names the group, and nothing is refused whose row is there."""
    rows = [[{"k": "ann"}], [("-D", {"k": "ann"})], [("-D", {"k": "ann"})]]
    calls = {"n": FUNCTIONS["count"]()}
    assert [each.ignored_retractions for each in run_epochs(calls, rows, keys=["k"])] == [0, 0, 1]
    assert len(run_epochs(calls, rows[:2], keys=["k"], strict=True)) == 2
    with pytest.raises(RejectedError, match="strict mode") as excinfo:
        run_epochs(calls, rows, keys=["k"], strict=True)
    assert (excinfo.value.code, excinfo.value.group) == ("CANNOT_RETRACT", {"k": "ann"})


def test_a_first_epoch_may_be_empty() -> None:
    """Without keys the group exists from the first epoch on; groups with keys exist when they have rows."""
    count = FUNCTIONS["count"]
    assert changelogs([], [{"v": 1}], n=count()) == [[("+I", {"n": 0})], [("-U", {"n": 0}), ("+U", {"n": 1})]]
    ignored_rows = [("-D", {"v": 1})]
    assert changelogs(ignored_rows, [{"v": 1}], n=count()) == [[("+I", {"n": 0})], [("-U", {"n": 0}), ("+U", {"n": 1})]]
    assert changelogs([], [{"k": 1}], keys=["k"], n=count()) == [[], [("+I", {"k": 1, "n": 1})]]
    assert changelogs([], [], keys=["k"], total=FUNCTIONS["sum"]("v")) == [[], []]


def test_a_key_may_always_be_null() -> None:
    """A column with only NULLs has no type of its own, and can be a key."""
    assert changelogs([{"k": None}], [{"k": None}], keys=["k"], n=FUNCTIONS["count"]()) == [
        [("+I", {"k": None, "n": 1})],
        [("-U", {"k": None, "n": 1}), ("+U", {"k": None, "n": 2})],
    ]


def test_columns_may_be_called_slot_and_kind() -> None:
    """Columns of rows may be named `slot` and `kind`: keys, arguments, conditions and outputs."""
    row = {"slot": 1, "kind": 2, "row_kind": True}
    total = FUNCTIONS["sum"]
    result = changelogs([row], keys=["slot"], kind=total("kind").where("row_kind"), again=total("slot"))
    assert result == [[("+I", {"slot": 1, "kind": 2, "again": 1})]]
    changes = changelogs([{"kind": True}, {"kind": False}], slot=FUNCTIONS["count"]().where("kind"))
    assert changes == [[("+I", {"slot": 1})]]


def test_an_output_called_like_a_key_is_refused() -> None:
    """An output with the name of a key would hide it."""
    with pytest.raises(RejectedError, match="'k' is a key and an output") as excinfo:
        changelogs([{"k": 1}], keys=["k"], k=FUNCTIONS["count"]())
    assert excinfo.value.code == "SIGNATURE"


def test_a_kind_must_be_one() -> None:
    """None is not a row kind, and the error lists the kinds."""
    with pytest.raises(RejectedError, match=r"None is no row kind; the kinds are \+I") as excinfo:
        changelogs([(None, {"k": 1})], keys=["k"], n=FUNCTIONS["count"]())
    assert excinfo.value.code == "SCHEMA_MISMATCH"


def test_a_value_that_does_not_fit_is_named() -> None:
    """The error tells column, row and value, with a code of the taxonomy."""
    total = FUNCTIONS["sum"]
    with pytest.raises(RejectedError, match=r"the value 'x' of v, in row 2 of its epoch, is no BIGINT") as excinfo:
        run_epochs({"n": total("v")}, [[{"v": 1}, {"v": "x"}]], types={"v": "BIGINT"})
    assert excinfo.value.code == "SCHEMA_MISMATCH"
    with pytest.raises(RejectedError, match=r"the value 'x' of k, in row 3 "):
        run_epochs({"n": FUNCTIONS["count"]()}, [[{"k": 1}, {"k": 2}, {"k": "x"}]], keys=["k"])


@pytest.mark.parametrize(
    ("value", "type_"),
    [(1.5, "BIGINT"), (np.float64(1.5), "INT"), (datetime.datetime(2024, 1, 1, 12, 0), "DATE")],
)
def test_nothing_is_cut_off_a_value(value: Any, type_: str) -> None:
    """A fraction does not fit an integer, nor a time a date: Arrow would cut them off, which no engine does."""
    calls = {"n": FUNCTIONS["max"]("v")}
    for run in (
        lambda: run_epochs(calls, [[{"v": value}]], types={"v": type_}),
        lambda: run_over(calls, [{"v": value}], types={"v": type_}),
    ):
        with pytest.raises(RejectedError, match=rf"of v, in row 1 of its epoch, is no {type_}") as excinfo:
            run()
        assert excinfo.value.code == "SCHEMA_MISMATCH"
    assert run_over({"n": FUNCTIONS["sum"]("v")}, [{"v": 2.0}], types={"v": "BIGINT"})[0]["n"] == 2


def test_an_object_that_is_no_call_is_refused_in_words() -> None:
    """A function that is not called, no dict, and a text in place of a list of names have a remedy."""
    total: Any = FUNCTIONS["sum"]
    rows = [{"k": 1, "v": 1}]
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ({"n": total}, {}, r"'n' is <function sum.*which is no call of an aggregate function; call one with"),
        ([total("v")], {}, "give a dict with at least one call"),
        ({"n": total("v")}, {"keys": "k"}, r"keys is the text 'k'; give a list of names: \['k'\]"),
    ]
    for calls, options, message in wrong:
        for run in (lambda: run_epochs(calls, [rows], **options), lambda: run_over(calls, rows, **options)):  # noqa: B023
            with pytest.raises(RejectedError, match=message) as excinfo:
                run()
            assert excinfo.value.code == "SIGNATURE"
    with pytest.raises(RejectedError, match="order_by is the text 'v'"):
        run_over({"n": total("v")}, rows, order_by="v")


class Thing:
    """A value of no type of SQL."""


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"v": Thing()}, r"the value <.*Thing.*> of v, in row 2 of all rows, does not tell its type; give the column"),
        ({"v": 2**70}, r"the value 1180591620717411303424 of v, in row 2 of all rows, does not tell its type"),
        ({"v": "x"}, r"the value 'x' of v, in row 2 of its epoch, is no BIGINT"),
        (7, r"the row 7 is no dict; give each row as a dict of its columns"),
    ],
)
def test_rows_that_no_engine_could_have_are_refused(row: Any, message: str) -> None:
    """All ways to run rows without an engine name column, row and value; none leaks an error of Arrow."""
    calls = {"n": FUNCTIONS["sum"]("v")}
    at = {"at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)}
    timed_row = {**row, **at} if isinstance(row, dict) else row
    for run in (
        lambda: run_epochs(calls, [[{"v": 1}, row]]),
        lambda: run_over(calls, [{"v": 1}, row]),
        lambda: run_over_epochs(calls, [[{"v": 1, **at}, timed_row]], order_by=["at"]),
    ):
        with pytest.raises(RejectedError, match=message) as excinfo:
            run()
        assert excinfo.value.code == "SCHEMA_MISMATCH"


def test_a_state_that_overflows_names_the_remedy() -> None:
    """The error tells what to write in place of the type of the accumulator."""

    @udaf
    class Product:
        def create_accumulator(self) -> int:
            return 1

        def accumulate(self, product: int, value: int) -> int:
            return product * value

        def get_value(self, product: int) -> float:
            return float(product)

    rows = [{"v": 2**62}, {"v": 2**62}]
    with pytest.raises(
        FunctionError, match=r'OVERFLOW.*a wider type: Annotated\[Decimal, "DECIMAL\(38, 0\)"\] in place'
    ):
        run_epochs({"p": connect(Product)["product"]("v")}, [rows])


def test_an_error_of_a_row_without_arguments_names_no_chunk() -> None:
    """How rows came into chunks is the engine's matter, also where a call has no arguments to show."""

    @udaf
    class Rows:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, count: int) -> int:
            raise ValueError("too many")

        def get_value(self, count: int) -> int:
            return count

    with pytest.raises(FunctionError, match="too many") as excinfo:
        run_epochs({"n": connect(Rows)["rows"]()}, [[{"k": 1}, {"k": 1}]], keys=["k"])
    assert excinfo.value.row == "without arguments"
    assert "chunk" not in str(excinfo.value)


@udaf
class Sessions:
    """Shows its arguments."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, times: list[str], at: int, gap_minutes: float = 30, word: str = "of") -> None:
        times.append(f"{word} {at if gap_minutes < 60 else -1}")

    def get_value(self, times: list[str]) -> str:
        return ", ".join(sorted(times))


def test_constants_are_arguments() -> None:
    """Numbers and texts in SQL's quotes stand in the place of columns, as in queries of Spark."""
    sessions = connect(Sessions)["sessions"]
    rows = [{"k": 1, "at": 7}, {"k": 1, "at": 9}]
    for call, value in (
        (sessions("at", gap_minutes=60), "of -1, of -1"),
        (sessions("at", 59.5, "'out of'"), "out of 7, out of 9"),
        (sessions("at", np.float64("inf")), "of -1, of -1"),
    ):
        (epoch,) = run_epochs({"s": call}, [rows], keys=["k"])
        assert epoch.changelog == [("+I", {"k": 1, "s": value})]
        assert run_over({"s": call}, rows, keys=["k"])[0]["s"] == value
    (epoch,) = run_epochs({"s": sessions("at", gap_minutes=60)}, [rows[:0]])
    assert epoch.changelog == [("+I", {"s": ""})]


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (pa.scalar(10**9 + 1, pa.time64("ns")), pa.time64("ns")),
        (np.datetime64(10**9 + 1, "ns"), pa.timestamp("ns")),
        (np.timedelta64(10**9 + 1, "ns"), pa.duration("ns")),
        (pd.Timestamp(10**9 + 1), pa.timestamp("us")),
        ([pd.Timedelta(10**9 + 1)], pa.list_(pa.duration("us"))),
    ],
)
def test_nanoseconds_are_refused_by_name(value: Any, type_: pa.DataType) -> None:
    """They are refused as arguments, as keys and for OVER: each would be shown as another value."""
    count, rows = FUNCTIONS["count"], [{"k": 1, "v": value}]
    for keys, calls in ((["k"], {"m": FUNCTIONS["max"]("v")}), (["v"], {"n": count()})):
        with pytest.raises(RejectedError, match="of v, in row 1 of its epoch, has nanoseconds") as excinfo:
            run_epochs(calls, [rows], keys=keys, types={"v": type_})
        assert excinfo.value.code == "SCHEMA_MISMATCH"
        with pytest.raises(RejectedError, match="has nanoseconds"):
            run_over(calls, rows, keys=keys, types={"v": type_})


@pytest.mark.parametrize("value", [datetime.datetime(2024, 1, 1), datetime.timedelta(1), [datetime.timedelta(1)]])
def test_columns_of_nanoseconds_give_values_of_python(value: Any) -> None:
    """Results, keys and states are values of the standard library, also where pandas is installed."""
    type_ = pa.timestamp("ns") if isinstance(value, datetime.datetime) else pa.duration("ns")
    type_ = pa.list_(type_) if isinstance(value, list) else type_
    (epoch,) = run_epochs({"m": FUNCTIONS["max"]("v")}, [[{"v": value}]], keys=["v"], types={"v": type_})
    assert repr(epoch.changelog) == repr([("+I", {"v": value, "m": value})])
    key = tuple(value) if isinstance(value, list) else value
    assert repr(epoch.states) == repr({(key,): {"m": {"value": value, "seen": True}}})


def test_floats_of_16_bits_are_keys_arguments_and_results() -> None:
    """They are keys, arguments and results, and NaN is equal to itself."""
    nan = np.float16("nan")
    rows = [{"v": np.float16(1.5)}, {"v": None}, {"v": nan}]
    calls = {"first": FUNCTIONS["first"]("v"), "most": FUNCTIONS["max"]("v"), "n": FUNCTIONS["count"]("v").distinct()}
    types = {"v": pa.float16()}
    _, one, other = run_epochs(calls, [[], rows, rows[:1]], types=types)
    row_text = "{'first': 1.5, 'most': nan, 'n': 2}"
    assert repr(one.changelog[-1]) == f"('+U', {row_text})"
    assert other.changelog == []
    first, second = run_epochs({"n": FUNCTIONS["count"]()}, [rows, [*rows, rows[2]]], keys=["v"], types=types)
    assert (
        repr(first.changelog) == "[('+I', {'v': 1.5, 'n': 1}), ('+I', {'v': None, 'n': 1}), ('+I', {'v': nan, 'n': 1})]"
    )
    assert [row["n"] for kind, row in second.changelog if kind == "+U"] == [2, 2, 3]


@pytest.mark.skipif(JSON is None, reason="Arrow has JSON since 19")
def test_json_is_kept_in_states() -> None:
    """JSON is a state, a key and DISTINCT, also in the first epoch, in which no state is known."""
    rows = [{"v": text} for text in ('{"a":1}', "[2]", '{"a":1}')]
    types, count = {"v": JSON}, FUNCTIONS["count"]
    calls = {"first": FUNCTIONS["first"]("v"), "n": count("v").distinct()}
    one, other = run_epochs(calls, [rows, [{"v": "3"}]], types=types)
    row = {"first": '{"a":1}', "n": 2}
    assert one.changelog == [("+I", row)]
    assert other.changelog == [("-U", row), ("+U", {**row, "n": 3})]
    calls = {"n": count(), "last": FUNCTIONS["last"]("v")}
    (keyed_epoch,) = run_epochs(calls, [rows], keys=["v"], types=types)
    assert keyed_epoch.changelog == [
        ("+I", {"v": '{"a":1}', "n": 2, "last": '{"a":1}'}),
        ("+I", {"v": "[2]", "n": 1, "last": "[2]"}),
    ]
    assert [row["first"] for row in run_over({"first": FUNCTIONS["first"]("v")}, rows, types=types)] == ['{"a":1}'] * 3


def test_a_missing_column_is_named_beside_those_of_the_rows() -> None:
    """Usually the name in the call is misspelt."""
    with pytest.raises(RejectedError, match=r"no column 'prise', which a call or a key names; rows have price\."):
        run_epochs({"n": connect("embedded:")["sum"]("prise")}, [[{"price": 1}]])
