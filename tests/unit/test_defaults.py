"""Default values of arguments: a call may leave the last ones out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from foldflight import Applied, MapView, RejectedError, Segment, connect, udaf, udf, udtf
from foldflight.exchange.frames import FunctionInfo
from foldflight.functions.author.udaf import function_of
from foldflight.testing import run_epochs, run_over


@udtf
def parts(s: str, sep: str = "-") -> Iterator[str]:
    yield from s.split(sep)


@udf
def scaled(x: int, factor: int = 10, offset: int = 1) -> int:
    """Scale and shift."""
    return x * factor + offset


@udaf
class Total:
    """The weighted total."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, total: int, value: int, weight: int = 2) -> int:
        return total + value * weight

    def retract(self, total: int, value: int, weight: int = 2) -> int:
        return total - value * weight

    def get_value(self, total: int) -> int:
        return total


@udaf
class Strict(Total):
    """Its retract has no default, so a call gives all arguments, as before."""

    def retract(self, total: int, value: int, weight: int) -> int:
        return total - value * weight


def test_defaults_are_in_signatures_and_fingerprints() -> None:
    """A call with all arguments is the call of earlier releases; a changed default changes the other one."""
    function: Any = function_of(scaled)
    assert function.signature == "scaled(x BIGINT, factor BIGINT DEFAULT 10, offset BIGINT DEFAULT 1) -> BIGINT"
    assert FunctionInfo.of(function).inputs_min == 1
    assert function.bind([pa.int64()] * 2, {}).input_types == (pa.int64(),) * 2
    total: Any = function_of(Total)
    assert total.bind([pa.int64()] * 2, {}).fingerprint == "3d9b216973203caf"
    assert total.bind([pa.int64()], {}).fingerprint != total.bind([pa.int64()] * 2, {}).fingerprint
    with pytest.raises(RejectedError, match="takes 1 to 3 arguments and was given 4"):
        function.bind([pa.int64()] * 4, {})
    strict: Any = function_of(Strict)
    assert (strict.inputs_min, strict.signature) == (2, "strict(value BIGINT, weight BIGINT) -> BIGINT")


@pytest.mark.every_turn
@pytest.mark.parametrize("compile_", [False, True])
def test_aggregates_use_defaults_of_arguments(compile_: bool) -> None:
    @udaf(compile=compile_, name="total")
    class Again(Total):
        pass

    total = connect(Again)["total"]
    epochs: list[Any] = [[{"v": 3, "w": 5}, {"v": 1, "w": 1}], [("-D", {"v": 1, "w": 1})]]
    outputs = {"a": total("v"), "b": total("v", "w"), "c": total(value="v"), "d": total("v", weight="w")}
    first, second = run_epochs(outputs, epochs)
    assert first.changelog == [("+I", {"a": 8, "b": 16, "c": 8, "d": 16})]
    assert second.changelog[-1] == ("+U", {"a": 6, "b": 15, "c": 6, "d": 15})
    assert run_over({"a": total("v")}, [{"v": 3}, {"v": 4}], order_by=["v"]) == [
        {"v": 3, "a": 6},
        {"v": 4, "a": 14},
    ]


@udaf
class Bundle(Total):
    """Folds bundles, whose rows have all arguments."""

    def fold_bundle(self, segments: list[Segment[int]]) -> list[Applied[int, int]]:
        return [self.applied(each) for each in segments]

    def applied(self, segment: Segment[int]) -> Applied[int, int]:
        total, values = sum(segment.accumulators), []
        for (value, weight), sign in zip(segment.rows, segment.signs, strict=True):
            total += sign * value * weight
            values.append(total)
        return Applied(total, total, values)

    def merge(self, total: int, other: int) -> int:
        return total + other


@dataclass
class Seen:
    keys: MapView[str, int] = field(default_factory=MapView)
    score: int = 0


class Distinct:
    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, accumulator: Seen, key: str, by: int = 5) -> None:
        accumulator.score += 0 if key in accumulator.keys else by
        accumulator.keys[key] = 1

    def get_value(self, accumulator: Seen) -> int:
        return accumulator.score


def test_bundles_use_defaults_of_arguments() -> None:
    bundle = connect(Bundle)["bundle"]
    rows: list[Any] = [{"v": 3, "w": 5}, {"v": 1, "w": 1}, ("-D", {"v": 1, "w": 1})]
    (epoch,) = run_epochs({"a": bundle("v"), "b": bundle("v", "w")}, [rows])
    assert epoch.changelog == [("+I", {"a": 6, "b": 15})]
    assert [row["a"] for row in run_over({"a": bundle("v")}, [{"v": 3}, {"v": 4}], order_by=["v"])] == [6, 14]


def test_arguments_behind_keys_of_prefetch_may_be_left_out() -> None:
    """Arguments behind those that are keys may be left out."""
    distinct = connect(udaf(prefetch={"keys": ["key"]})(Distinct))["distinct"]
    rows: list[Any] = [{"k": "a", "w": 1}, {"k": "b", "w": 1}, {"k": "a", "w": 1}]
    (epoch,) = run_epochs({"a": distinct("k"), "b": distinct("k", "w")}, [rows])
    assert epoch.changelog == [("+I", {"a": 10, "b": 2})]

    class OfDefault(Distinct):
        def accumulate(self, accumulator: Seen, key: str = "", by: int = 5) -> None:
            return super().accumulate(accumulator, key, by)

    function: Any = function_of(udaf(prefetch={"keys": ["key"]})(OfDefault))
    assert function.signature.startswith("of_default(key STRING, by BIGINT DEFAULT 5)")


def test_named_arguments_may_leave_out_defaults() -> None:
    call = connect(scaled)
    assert call("a", offset="b + 1", factor="c").arguments == ("a", "c", "b + 1")
    with pytest.raises(RejectedError, match="is given offset without factor, which comes before it; give factor, too"):
        call("a", offset="b")
    with pytest.raises(RejectedError, match="has no direct argument 'facto'"):
        call("a", facto=3)
