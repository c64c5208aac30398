"""The event loop of a process: what may end a coroutine, and what is left when an engine leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from foldflight import FunctionContext, FunctionError, udaf, udf
from foldflight.coroutines import instances
from foldflight.coroutines.eventloop import BlockedLoop, EventLoop, _raise_in
from foldflight.exchange.frames import UNBOUNDED, Open
from foldflight.exchange.serving import ServerExchange
from foldflight.functions import Call, Registry, Step, StepArgument

NUMBER = pa.schema([("x", pa.int64())])
CLOSED: list[str] = []


@udf
async def echo(x: int) -> int:
    return x


@udf
class Kept:
    async def close(self) -> None:
        CLOSED.append("kept")

    async def eval(self, x: int) -> int:
        return x


@udf
class NeverOpen:
    async def open(self, context: FunctionContext) -> None:
        await asyncio.sleep(3600)

    async def eval(self, x: int) -> int:
        return x


@udf
class CancelledOpen:
    async def open(self, context: FunctionContext) -> None:
        raise asyncio.CancelledError

    async def eval(self, x: int) -> int:
        return x


@udf
class NeverClosed:
    async def close(self) -> None:
        await asyncio.sleep(3600)

    async def eval(self, x: int) -> int:
        return x


@udaf
class SlowToClose:
    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, xs: list[int], x: int) -> None:
        xs.append(x)

    async def get_value(self, xs: list[int]) -> int:
        return sum(xs)

    async def close(self) -> None:
        await asyncio.sleep(0.3)  # longer than the pause between two looks at the engine
        CLOSED.append("aggregate")


FUNCTIONS = Registry.load([echo, Kept, NeverOpen, CancelledOpen, NeverClosed, SlowToClose])


class LeftError(Exception):
    """The engine has left."""


def leave() -> None:
    raise LeftError


def opened(loop: EventLoop, *functions: str, check: Any = lambda: None) -> ServerExchange:
    steps = tuple(Step(name, (StepArgument("x"),)) for name in functions)
    request = Open((), NUMBER, steps=steps, outputs=tuple(range(len(steps))))
    return ServerExchange(request, FUNCTIONS, limits=UNBOUNDED, server_id="here", coroutines=loop, check=check)


def test_an_interrupt_that_comes_too_late_does_not_end_the_loop() -> None:
    """Code that held up the loop may return just before it is interrupted. The loop then goes on."""
    loop = EventLoop()
    done = []

    async def note() -> None:
        done.append(1)

    loop.run("echo", note(), lambda: None)
    turning = loop._process.turning
    assert turning is not None
    _raise_in(turning.thread, BlockedLoop)  # it is idle, so this is raised within the loop itself

    def check() -> None:
        assert turning.thread.is_alive()

    for _ in range(3):
        loop.run("echo", note(), check)
    assert len(done) == 4


def test_an_open_that_was_cancelled_has_failed() -> None:
    """A class whose `open` did not come to its end is not used."""
    with pytest.raises(FunctionError, match="cancelled by its own code"):
        opened(EventLoop(), "cancelled_open")


def test_an_engine_that_leaves_while_functions_open_keeps_no_instance_in_use() -> None:
    """The error is the engine's leaving, and instances that were opened before are unused then."""
    CLOSED.clear()
    loop = EventLoop()
    with pytest.raises(LeftError):
        opened(loop, "kept", "never_open", check=leave)
    loop.close_instances()
    assert CLOSED == ["kept"]


def test_the_close_of_an_aggregate_ends_after_its_engine_has_left() -> None:
    """An engine that leaves ends what it waits for, and not the cleaning up."""
    CLOSED.clear()
    columns = pa.schema([("slot", pa.int32()), ("x", pa.int64())])
    request = Open((Call("slow_to_close", ("x",)),), columns)
    exchange = ServerExchange(
        request, FUNCTIONS, limits=UNBOUNDED, server_id="here", coroutines=EventLoop(), check=leave
    )
    exchange.close()
    assert CLOSED == ["aggregate"]


def test_an_instance_that_does_not_close_holds_up_nobody(monkeypatch, caplog) -> None:
    """A server that ends cancels a `close` that hangs, and logs its function."""
    monkeypatch.setattr(instances, "_CLOSE_S", 0.2)
    loop = EventLoop()
    opened(loop, "never_closed").close()
    loop.close_instances()
    assert "never_closed: close raised TimeoutError" in caplog.text
