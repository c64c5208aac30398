"""Streams that continue with other versions of their functions: states before and after the change."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from foldflight import CorruptError, FunctionError, RejectedError, connect, udaf
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.query import StreamOptions
from foldflight.engine.state.manifest import Manifest
from foldflight.functions import Call, function_of
from tests.laws.stream_engine import BucketState, Rows, StreamEngine

KEYS = pa.schema([("name", pa.string())])
COLUMNS = pa.schema([("v", pa.int64())])
OPTIONS = StreamOptions(emit="changelog", buckets=2, strict=False, closing_lateness_ms=None)
MEAN = {"input_types": ["BIGINT"], "result_type": "DOUBLE", "name": "mean"}


class Sum:
    sum: int


class Totals:
    total: float
    rows: int


class Old:
    """A mean without the number of rows, which is wrong and therefore replaced by a new version."""

    def create_accumulator(self) -> Sum:
        accumulator = Sum()
        accumulator.sum = 0
        return accumulator

    def accumulate(self, accumulator: Any, v: int) -> None:
        accumulator.sum += v

    def get_value(self, accumulator: Any) -> float:
        return float(accumulator.sum)


class New:
    """Counts rows; an old state counts as one row."""

    def create_accumulator(self) -> Totals:
        accumulator = Totals()
        accumulator.total, accumulator.rows = 0.0, 0
        return accumulator

    def accumulate(self, accumulator: Any, v: int) -> None:
        accumulator.total += v
        accumulator.rows += 1

    def get_value(self, accumulator: Any) -> float:
        return accumulator.total / accumulator.rows


class Migrating(New):
    def migrate(self, version: str, state: Any) -> Totals:
        assert version == "1"
        accumulator = self.create_accumulator()
        accumulator.total, accumulator.rows = float(state["sum"]), 1
        return accumulator


class Telling(Migrating):
    def open(self, context: Any) -> None:
        self.logger = context.logger

    def migrate(self, version: str, state: Any) -> Totals:
        self.logger.warning("migrated", state=state)
        return super().migrate(version, state)


class Refusing(New):
    def migrate(self, version: str, state: Any) -> Totals:
        raise ValueError(f"no idea what {state} was")


class Bytes(Old):
    """The same, with states as text in bytes."""

    def serialize(self, accumulator: Any) -> bytes:
        return str(accumulator.sum).encode()

    def deserialize(self, data: bytes) -> Sum:
        accumulator = Sum()
        accumulator.sum = int(data)
        return accumulator


class MigratingBytes(Migrating):
    def migrate(self, version: str, state: bytes) -> Totals:
        return super().migrate(version, {"sum": int(state)})


class Pickled(Old):
    """The same with pickled states, because the annotation does not describe the contents."""

    def create_accumulator(self) -> list:  # type: ignore[override, type-arg]
        return [0]

    def accumulate(self, accumulator: Any, v: int) -> None:
        accumulator[0] += v

    def get_value(self, accumulator: Any) -> float:
        return float(accumulator[0])


class MigratingPickled(Migrating):
    def migrate(self, version: str, state: list[int]) -> Totals:
        return super().migrate(version, {"sum": state[0]})


def version(number: str, cls: type, **options: Any) -> type:
    """Return a version of the function `mean`; each class is registered once for each version."""
    return udaf(**{**MEAN, **options}, version=number)(type(cls.__name__, (cls,), {}))


def engine(
    function: type,
    buckets: dict[int, BucketState] | None = None,
    *,
    literals: dict[str, Any] | None = None,
    distinct: bool = False,
) -> StreamEngine:
    """Return a query, new or restarted from its state."""
    transport = connect(function, state_key=b"the same key for all versions")["mean"]("v").transport
    engine = StreamEngine(
        transport,
        {"mean": Call("mean", ("v",), literals=literals or {}, distinct=distinct)},
        KEYS,
        COLUMNS,
        has_kinds=False,
        options=OPTIONS,
        seed=1,
        bounds=BlockBounds(),
        folds_first=False,
    )
    if buckets is not None:
        engine.buckets = buckets
    return engine


def rows(*names: str, v: int = 10) -> Rows:
    return [{"name": name, "v": v} for name in names]


def changed_rows(output: Rows) -> set[tuple[str, str, float]]:
    return {(row["row_kind"], row["name"], row["mean"]) for row in output}


@pytest.mark.parametrize(
    ("old", "new"),
    [(Old, Migrating), (Bytes, MigratingBytes), (Pickled, MigratingPickled)],
    ids=lambda cls: cls.__name__,
)
def test_states_of_an_earlier_version_are_migrated(old: type, new: type) -> None:
    """Groups continue with the migrated states, for all codecs; new groups start as usual."""
    before = engine(version("1", old))
    before.epoch([rows("ann", "bob", "bob")], 0)
    after = engine(version("2", new), before.buckets)
    assert changed_rows(after.epoch([rows("bob", "cy", v=30)], 0)) == {
        ("-U", "bob", 20),
        ("+U", "bob", 25),
        ("+I", "cy", 30),
    }
    assert changed_rows(after.epoch([rows("ann", "bob", v=40)], 0)) == {
        ("-U", "ann", 10),
        ("+U", "ann", 25),
        ("-U", "bob", 25),
        ("+U", "bob", 30),
    }


def test_states_are_migrated_when_they_are_merged() -> None:
    """Runs of several versions are merged into runs of the newest, until no old state is left."""
    before = engine(version("1", Old))
    names = [f"group {number}" for number in range(20)]
    for _ in range(5):
        before.epoch([rows(*names)], 0)
    after = engine(version("2", Migrating), before.buckets)
    for _ in range(12):
        after.epoch([rows("another", "one more", "and more", "at last", v=1)], 0)
    for state in after.buckets.values():
        assert state.manifest is not None
        manifest = Manifest.decode(*state.manifest)
        assert {piece.generation for piece in manifest.pieces} == {manifest.current} == set(manifest.generations)
    assert {name for name, *_ in after.live_rows()} >= set(names)
    assert changed_rows(after.epoch([rows(names[0], v=70)], 0)) == {("-U", names[0], 50), ("+U", names[0], 60)}


def test_a_version_without_migrate_is_refused_before_anything_happens() -> None:
    """Without migrate the first epoch fails, whichever groups it has; the error names function, versions and remedy."""
    before = engine(version("1", Old))
    before.epoch([rows("ann")], 0)
    manifest_of_bucket = {bucket: state.manifest for bucket, state in before.buckets.items()}
    with pytest.raises(
        RejectedError, match=r"mean version 1.*has version 2.*define migrate\(self, version, state\)"
    ) as excinfo:
        engine(version("2", New), before.buckets).epoch([rows("zoe")], 0)
    assert (excinfo.value.code, excinfo.value.function) == ("STATE_MISMATCH", "mean")
    assert {bucket: state.manifest for bucket, state in before.buckets.items() if state.manifest} == manifest_of_bucket


class Reals:
    sum: float


class Real(Old):
    """The same with a sum of floats."""

    def create_accumulator(self) -> Reals:  # type: ignore[override]
        accumulator = Reals()
        accumulator.sum = 0.0
        return accumulator


class Number(Old):
    """The same without an object around the sum."""

    def create_accumulator(self) -> int:  # type: ignore[override]
        return 0

    def accumulate(self, accumulator: int, v: int) -> int:  # type: ignore[override]
        return accumulator + v

    def get_value(self, accumulator: int) -> float:
        return float(accumulator)


class Scaled(Old):
    def __init__(self, factor: int = 1) -> None:
        self.factor = factor


class PickledScaled(Pickled):
    def __init__(self, factor: int = 1) -> None:
        self.factor = factor


OTHER = "so something else differs: the types of its arguments or of its result, its direct arguments"


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (
            Old,
            Migrating,
            "total DOUBLE was added, rows BIGINT was added, sum BIGINT was removed; set this back, or raise version=",
        ),
        (Old, Real, "in its accumulator, sum was BIGINT and is DOUBLE; set this back"),
        (Old, Number, "its state was STRUCT<sum BIGINT>, and is BIGINT; set this back"),
        (Old, Pickled, "its state was STRUCT<sum BIGINT>, and is BINARY; set this back"),
        (Scaled, Scaled, f"its state is STRUCT<sum BIGINT>, as before, {OTHER}"),
        (PickledScaled, PickledScaled, f"its state is pickled or custom (bytes), {OTHER}"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_another_schema_needs_another_version(old: type, new: type, change: str) -> None:
    """Other states with the same version are refused with what has changed, even if there is a migrate."""
    before = engine(version("1", old))
    before.epoch([rows("ann")], 0)
    literals = {"factor": 2} if hasattr(new(), "factor") else {}
    with pytest.raises(RejectedError, match="both of version 1") as excinfo:
        engine(version("1", new), before.buckets, literals=literals).epoch([rows("ann")], 0)
    assert (excinfo.value.code, excinfo.value.function) == ("STATE_MISMATCH", "mean")
    assert change in str(excinfo.value)
    assert not re.search("[0-9a-f]{16}", str(excinfo.value))


def test_a_migrate_that_raises_names_the_group() -> None:
    """An exception in migrate is a FunctionError with the group, the version and the exception."""
    before = engine(version("1", Old))
    before.epoch([rows("ann", "bob", "cy")], 0)
    with pytest.raises(
        FunctionError, match=r"migrate \(of a state of version 1\) raised.*no idea what \{'sum': 10\}"
    ) as excinfo:
        engine(version("2", Refusing), before.buckets).epoch([rows("bob")], 0)
    assert (excinfo.value.code, excinfo.value.group) == ("USER_CODE", {"name": "bob"})


def test_log_lines_of_migrate_are_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    """Log lines of migrate are logged by the worker, like lines of other methods."""
    before = engine(version("1", Old))
    before.epoch([rows("ann", "bob")], 0)
    engine(version("2", Telling), before.buckets).epoch([rows("bob")], 0)
    assert [record.name for record in caplog.records if "migrated state={'sum': 10}" in record.message] == [
        "foldflight.functions.mean"
    ]


def test_rows_that_are_kept_need_no_migrate() -> None:
    """DISTINCT states are rows, which do not depend on a version: any version folds them."""
    before = engine(version("1", Old), distinct=True)
    before.epoch([rows("ann", "ann")], 0)
    after = engine(version("2", New), before.buckets, distinct=True)
    assert changed_rows(after.epoch([rows("ann", v=20)], 0)) == {("-U", "ann", 10), ("+U", "ann", 15)}


def test_damaged_states_are_not_migrated() -> None:
    """The checksums of old states are verified."""
    from foldflight.fold.aggregate.state_codecs import StateOrigin, custom_payload

    with pytest.raises(RejectedError, match="another codec"):
        StateOrigin("1", "00" * 8, "custom").values(function_of(version("1", Old)), pa.array([b"nonsense"]), None)
    envelope = b"FFC1" + bytes(8) + bytes(4) + b"damaged"
    with pytest.raises(CorruptError):
        custom_payload("mean", "1", bytes(8), envelope)
