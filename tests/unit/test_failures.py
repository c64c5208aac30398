"""Isolated errors of slots: which are isolated, their texts, and the state of the slots afterwards."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from foldflight import FunctionError, RejectedError, udaf
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.failures import ERROR, ERROR_TYPE
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Registry
from foldflight.functions.types.arrow import with_column
from tests.folds import open_fold

SCHEMA = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("v", pa.int64())])
INSERT, DELETE = 0, 3
FOLD_13, TAKE_BACK_14, MERGE_15, SHOW_16, SAVE_17, LOAD_18 = range(13, 19)


class Values:
    """Accumulator of Touchy."""

    def __init__(self) -> None:
        self.values: list[int] = []


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Touchy:
    """A sum whose methods each raise for one value."""

    def create_accumulator(self) -> Values:
        return Values()

    def get_value(self, accumulator: Values) -> int:
        self._bear(SHOW_16, accumulator)
        return sum(accumulator.values)

    def accumulate(self, accumulator: Values, value: int) -> None:
        accumulator.values.append(value)
        if value == FOLD_13:
            raise ValueError("13 cannot be folded")

    def retract(self, accumulator: Values, value: int) -> None:
        accumulator.values.remove(value)
        if value == TAKE_BACK_14:
            raise ValueError("14 cannot be taken back")

    def merge(self, accumulator: Values, other: Values) -> None:
        accumulator.values += other.values
        self._bear(MERGE_15, accumulator)

    def serialize(self, accumulator: Values) -> bytes:
        self._bear(SAVE_17, accumulator)
        return ",".join(map(str, accumulator.values)).encode()

    def deserialize(self, data: bytes) -> Values:
        accumulator = Values()
        accumulator.values = [int(value) for value in data.decode().split(",") if value]
        self._bear(LOAD_18, accumulator)
        return accumulator

    @staticmethod
    def _bear(value: int, accumulator: Values) -> None:
        if value in accumulator.values:
            raise ValueError(f"{value} cannot be borne")


@udaf(input_types=["BIGINT"], result_type="TINYINT")
class Small:
    """A sum whose result must fit 8 bits."""

    def create_accumulator(self) -> int:
        return 0

    def get_value(self, accumulator: int) -> int:
        return accumulator

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Stillborn:
    """Its create_accumulator raises."""

    def create_accumulator(self) -> Values:
        raise OSError("there is no accumulator")

    def get_value(self, accumulator: Values) -> int:
        return len(accumulator.values)

    def accumulate(self, accumulator: Values, value: int) -> None:
        accumulator.values.append(value)


@udaf(input_types=["BIGINT"], state_type="ARRAY<DOUBLE>", result_type="BIGINT")
class Emptied:
    """Its get_value empties the accumulator, whose state has other numbers than its methods have put there."""

    def create_accumulator(self) -> list[float]:
        return []

    def get_value(self, accumulator: list[float]) -> int:
        total = sum(map(int, accumulator))
        accumulator.clear()
        return "none" if total == SHOW_16 else total  # type: ignore[return-value]

    def accumulate(self, accumulator: list[float], value: int) -> None:
        accumulator.append(value)


TOUCHY = Call("touchy", ("v",))


def new_fold(*calls: Call, isolates: bool = True) -> Fold:
    functions = Registry.load([Touchy, Small, Stillborn, Emptied])
    return open_fold(
        bind_calls(functions, calls, SCHEMA), signer=StateSigner([b"a key of 16 bytes"]), isolates=isolates
    )


def chunk(*rows: tuple[int, int, int]) -> pa.RecordBatch:
    """Make a chunk of (slot, kind, v)."""
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def results_by_slot(batch: pa.RecordBatch) -> dict[int, Any]:
    """Return the outputs by slot; for failed slots the last word of the message."""
    return {
        row["slot"]: row["output_0"] if row[ERROR] is None else row[ERROR]["message"].split(": ")[-1]
        for row in batch.to_pylist()
    }


def state_of(values: Sequence[int]) -> pa.RecordBatch:
    """Return the state of slot 0 with these values."""
    fold = new_fold(TOUCHY)
    fold.fold(chunk(*[(0, INSERT, value) for value in values]))
    return fold.collect(outputs=False).select(["slot", "state_0"])


def test_only_the_slot_fails() -> None:
    """A slot whose accumulate or retract raises has NULLs and the error; other rows of the chunk are folded."""
    fold = new_fold(TOUCHY, Call("count"))
    fold.fold(chunk((0, INSERT, 1), (1, INSERT, 2), (1, INSERT, FOLD_13), (0, INSERT, 3), (1, INSERT, 4)))
    fold.fold(chunk((0, INSERT, 14), (2, INSERT, 14), (2, DELETE, 14), (1, DELETE, 2), (0, INSERT, 5)))
    batch = fold.collect()
    assert results_by_slot(batch) == {0: 23, 1: "13 cannot be folded", 2: "14 cannot be taken back"}
    assert batch.column("output_1").to_pylist() == [4, None, None]
    assert batch.column("state_1").null_count == 2
    [error] = [row[ERROR] for row in batch.to_pylist() if row["slot"] == 1]
    assert error["code"] == "USER_CODE"
    assert error["function"] == "touchy"
    assert error["row"] == "v=13"
    assert "accumulator.values.append(value)" not in error["trace"]
    assert 'raise ValueError("13 cannot be folded")' in error["trace"]


def test_rows_of_a_failed_slot_are_skipped() -> None:
    """The function gets no more rows of a failed slot in the epoch, in this chunk or the next."""
    folded_values: list[int] = []

    @udaf(input_types=["BIGINT"], result_type="BIGINT", name="watched", compile=False)
    class Watched:
        def create_accumulator(self) -> int:
            return 0

        def get_value(self, accumulator: int) -> int:
            return accumulator

        def accumulate(self, accumulator: int, value: int) -> int:
            folded_values.append(value)
            return accumulator + 100 // (value - FOLD_13)

    fold = open_fold(bind_calls(Registry.load([Watched]), [Call("watched", ("v",))], SCHEMA), isolates=True)
    fold.fold(chunk((0, INSERT, FOLD_13), (0, INSERT, 1), (1, INSERT, 2), (0, INSERT, 3)))
    fold.fold(chunk((0, INSERT, 4), (1, INSERT, 5)))
    assert folded_values == [FOLD_13, 2, 5]
    fold.collect()
    fold.fold(chunk((0, INSERT, 6)))
    assert folded_values[3:] == [6]


def test_a_failed_slot_is_empty_after_the_barrier() -> None:
    """States and rows of a failed slot are skipped until the barrier; then the slot is empty."""
    fold = new_fold(TOUCHY)
    fold.fold(chunk((0, INSERT, FOLD_13)))
    fold.fold(chunk((0, INSERT, 1)))
    fold.merge_states(state_of([2]))
    assert results_by_slot(fold.collect()) == {0: "13 cannot be folded"}
    assert fold.collect().num_rows == 0
    assert fold.changed_states().num_rows == 0
    fold.merge_states(state_of([2]))
    fold.fold(chunk((0, INSERT, 3)))
    assert results_by_slot(fold.collect()) == {0: 5}
    assert fold.failures.counts == {"touchy": 1}


@pytest.mark.parametrize(
    ("value", "why"),
    [(MERGE_15, "15 cannot be borne"), (LOAD_18, "18 cannot be borne"), (SHOW_16, "16 cannot be borne")],
)
def test_states_that_cannot_be_merged_loaded_or_shown_fail_their_slot(value: int, why: str) -> None:
    """If merge, deserialize or get_value raises, only that slot fails, and other states are merged."""
    fold = new_fold(TOUCHY)
    sound, bad = state_of([1]), state_of([value])
    slots = pa.array([0, 1, 1, 2], pa.int32())
    states = pa.concat_arrays([sound["state_0"], sound["state_0"], bad["state_0"], sound["state_0"]])
    fold.merge_states(pa.RecordBatch.from_arrays([slots, states], names=["slot", "state_0"]))
    assert results_by_slot(fold.outputs(pa.array([2, 1, 0], pa.int32()))) == {0: 1, 1: why, 2: 1}
    fold.fold(chunk((2, INSERT, 1)))
    assert results_by_slot(fold.collect()) == {0: 1, 1: why, 2: 2}


def test_many_slots_that_cannot_be_saved_or_shown_fail_alone() -> None:
    """If serialize and get_value raise for some of many slots, only those fail."""
    fold = new_fold(TOUCHY)
    values = {slot: SAVE_17 if slot % 7 == 3 else SHOW_16 if slot % 11 == 5 else slot + 100 for slot in range(200)}
    fold.fold(chunk(*[(slot, INSERT, value) for slot, value in values.items()]))
    batch = fold.collect()
    assert results_by_slot(batch) == {
        slot: value if value >= 100 else f"{value} cannot be borne" for slot, value in values.items()
    }
    assert batch.column("state_0").null_count == sum(value < 100 for value in values.values())


def test_wrong_results_and_accumulators_fail_their_slot() -> None:
    """OVERFLOW of a result, and a create_accumulator that raises, are isolated, too."""
    fold = new_fold(Call("small", ("v",)))
    fold.fold(chunk((0, INSERT, 100), (1, INSERT, 100), (1, INSERT, 100), (2, INSERT, 27)))
    errors = fold.collect().column(ERROR).to_pylist()
    assert [error and error["code"] for error in errors] == [None, "OVERFLOW", None]
    fold = new_fold(Call("stillborn", ("v",)), Call("count"))
    fold.fold(chunk((0, INSERT, 1), (1, INSERT, 1)))
    assert set(results_by_slot(fold.collect()).values()) == {"there is no accumulator"}


def test_a_value_is_not_made_again_of_what_get_value_has_left() -> None:
    """A value that does not fit fails its slot, and others have the values of accumulators that are whole."""
    fold = new_fold(Call("emptied", ("v",)))
    fold.fold(chunk(*((slot, INSERT, slot + 10) for slot in range(10))))
    result = results_by_slot(fold.collect())
    assert "does not fit BIGINT" in result.pop(SHOW_16 - 10)
    assert result == {slot: slot + 10 for slot in range(10) if slot + 10 != SHOW_16}


def test_rows_that_are_kept_fail_when_they_are_folded() -> None:
    """With DISTINCT and materialize the rows are folded when the value is requested, and fail then."""
    for call in (Call("touchy", ("v",), distinct=True), Call("touchy", ("v",), materialize=True)):
        fold = new_fold(call)
        fold.fold(chunk((0, INSERT, 1), (1, INSERT, FOLD_13), (1, INSERT, 2), (2, INSERT, 3)))
        assert results_by_slot(fold.collect()) == {0: 1, 1: "13 cannot be folded", 2: 3}


def test_a_failed_slot_stays_failed_in_another_fold() -> None:
    """A checkpoint includes the error, and the next fold skips the slot like the first one."""
    one, two = new_fold(TOUCHY), new_fold(TOUCHY)
    one.fold(chunk((0, INSERT, FOLD_13), (1, INSERT, 1)))
    saved_states = one.changed_states()
    two.merge_states(saved_states)
    for fold in (one, two):
        fold.fold(chunk((0, INSERT, 1), (1, INSERT, 2)))
    after = two.collect()
    assert after.equals(one.collect())
    assert results_by_slot(after) == {0: "13 cannot be folded", 1: 3}


def test_the_first_error_of_a_slot_stays() -> None:
    """A slot that has failed keeps its error when a checkpoint has another."""
    one, two = new_fold(TOUCHY), new_fold(TOUCHY)
    one.fold(chunk((0, INSERT, FOLD_13)))
    two.fold(chunk((0, INSERT, TAKE_BACK_14), (0, DELETE, TAKE_BACK_14)))
    one.merge_states(two.changed_states())
    assert results_by_slot(one.collect()) == {0: "13 cannot be folded"}


def test_a_state_that_cannot_be_saved_now_may_be_saved_later() -> None:
    """At a checkpoint no slot fails: its error is raised, and the barrier returns the slots as they are then."""
    fold = new_fold(TOUCHY)
    fold.fold(chunk((0, INSERT, SAVE_17), (0, INSERT, 1)))
    with pytest.raises(FunctionError, match="17 cannot be borne"):
        fold.changed_states()
    fold.fold(chunk((0, DELETE, SAVE_17)))
    assert results_by_slot(fold.collect()) == {0: 1}


def test_forgotten_slots_have_not_failed() -> None:
    """A slot that is forgotten after it has failed is empty and clean."""
    fold = new_fold(TOUCHY)
    fold.fold(chunk((0, INSERT, FOLD_13)))
    fold.forget(pa.array([0], pa.int32()))
    assert fold.collect().num_rows == 0
    fold.fold(chunk((0, INSERT, 1)))
    assert results_by_slot(fold.collect()) == {0: 1}


def test_messages_of_authors_are_cut_to_fit() -> None:
    """Messages are bounded, and text that is not valid UTF-8 is escaped."""
    fold = new_fold(TOUCHY)
    error = FunctionError("USER_CODE", "\ud800" + "x" * 10_000, function="touchy", slot=0)
    assert fold.failures.take(error)
    fold.fold(chunk((0, INSERT, 1)))
    [row] = fold.collect().to_pylist()
    assert row[ERROR]["message"].startswith("\\ud800xxx")
    assert len(row[ERROR]["message"]) == 4096


def test_messages_of_many_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a bound, groups still fail one by one with code and function, but with less text, until the barrier."""
    monkeypatch.setattr("foldflight.fold.failures._ALL_CHARS_MAX", 1000)
    fold = new_fold(TOUCHY)
    for _ in range(2):
        fold.fold(chunk(*[(slot, INSERT, FOLD_13) for slot in range(20)]))
        errors = fold.collect().column(ERROR).to_pylist()
        assert {(error["code"], error["function"]) for error in errors} == {("USER_CODE", "touchy")}
        assert all(errors[0].values())
        assert (errors[-1]["row"], errors[-1]["trace"]) == (None, None)
        assert errors[-1]["message"] == "accumulate raised ValueError: 13 cannot be folded"


def test_an_error_without_words_is_the_authors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception whose __str__ raises fails its slot like any other."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    def mute(self: Touchy, accumulator: Values, value: int) -> None:
        raise MuteError

    monkeypatch.setattr(Touchy, "accumulate", mute)
    fold = new_fold(TOUCHY)
    fold.fold(chunk((0, INSERT, 1)))
    [row] = fold.collect().to_pylist()
    assert row[ERROR]["code"] == "USER_CODE"
    assert row[ERROR]["message"] == "accumulate raised MuteError: (its __str__ raised ZeroDivisionError)"


class Pickles(Values):
    """An accumulator that exits the process when it is pickled or loaded."""

    ends: str = ""

    def __getstate__(self) -> Any:
        if Pickles.ends == "pickle.dumps":
            raise SystemExit(1)
        return self.__dict__

    def __setstate__(self, state: Any) -> None:
        if Pickles.ends == "pickle.loads":
            raise SystemExit(1)
        self.__dict__.update(state)


@pytest.mark.parametrize(
    "method", ["accumulate", "get_value", "serialize", "deserialize", "close", "pickle.dumps", "pickle.loads"]
)
def test_code_that_exits_ends_the_fold_not_the_process(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SystemExit, with which a server interrupts functions, is an error of the method that it came from."""

    def exits(*_: Any) -> Any:
        raise SystemExit(1)

    if method.startswith("pickle"):
        monkeypatch.setattr(Pickles, "ends", method)
        methods = {**vars(Touchy), "create_accumulator": lambda self: Pickles(), "serialize": None, "deserialize": None}
        touchy = udaf(input_types=["BIGINT"], result_type="BIGINT")(type("Touchy", (), methods))
    else:
        monkeypatch.setattr(Touchy, method, exits, raising=False)
        touchy = Touchy
    calls, signer = bind_calls(Registry.load([touchy]), [TOUCHY], SCHEMA), StateSigner([b"a key of 16 bytes"])

    def run() -> None:
        fold = open_fold(calls, signer=signer)
        fold.fold(chunk((0, INSERT, 1)))
        fold.merge_states(fold.collect())
        fold.close()

    with pytest.raises(FunctionError, match=f"^USER_CODE: {method} raised SystemExit: 1"):
        run()


def test_messages_of_exceptions_are_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception with megabytes of text becomes a short error, also without isolation."""

    def chatty(self: Touchy, accumulator: Values, value: int) -> None:
        raise ValueError("x" * 50_000_000)

    monkeypatch.setattr(Touchy, "accumulate", chatty)
    with pytest.raises(FunctionError, match=r"^USER_CODE: accumulate raised ValueError: xxx") as excinfo:
        new_fold(TOUCHY, isolates=False).fold(chunk((0, INSERT, 1)))
    assert len(excinfo.value.message) < 5000
    assert "in chatty" in (excinfo.value.trace or "")
    assert len(excinfo.value.trace or "") < 10_000


def test_without_isolation_errors_are_raised() -> None:
    """A fold without isolation raises, has no column `error`, and refuses one."""
    fold = new_fold(TOUCHY, isolates=False)
    assert ERROR not in fold.schema.names
    with pytest.raises(FunctionError, match="13 cannot be folded"):
        fold.fold(chunk((0, INSERT, FOLD_13)))
    with pytest.raises(RejectedError, match="Open isolates no errors"):
        fold.merge_states(with_column(state_of([1]), ERROR, pa.nulls(1, ERROR_TYPE)))
    with pytest.raises(RejectedError, match="error, which is int64 and must be struct"):
        new_fold(TOUCHY).merge_states(with_column(state_of([1]), ERROR, pa.array([1])))
