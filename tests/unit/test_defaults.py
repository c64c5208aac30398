"""Default values of arguments: a call may leave the last ones out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from foldflight import RejectedError, connect, udaf, udf, udtf
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


def test_signatures_and_fingerprints() -> None:
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


@pytest.mark.parametrize("compile_", [False, True])
def test_aggregates(compile_: bool) -> None:
    @udaf(compile=compile_, name="total")
    class Again(Total):
        pass

    total = connect(Again)["total"]
    rows: list[Any] = [{"v": 3, "w": 5}, ("-D", {"v": 1, "w": 1})]
    outputs = {"a": total("v"), "b": total("v", "w"), "c": total(value="v"), "d": total("v", weight="w")}
    (epoch,) = run_epochs(outputs, [rows])
    assert epoch.changelog == [("+I", {"a": 4, "b": 14, "c": 4, "d": 14})]
    assert run_over({"a": total("v")}, [{"v": 3}, {"v": 4}], order_by=["v"]) == [
        {"v": 3, "a": 6},
        {"v": 4, "a": 14},
    ]


def test_names() -> None:
    call = connect(scaled)
    assert call("a", offset="b + 1", factor="c").arguments == ("a", "c", "b + 1")
    with pytest.raises(RejectedError, match="is given offset without factor, which comes before it; give factor, too"):
        call("a", offset="b")
    with pytest.raises(RejectedError, match="has no direct argument 'facto'"):
        call("a", facto=3)
