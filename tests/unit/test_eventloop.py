"""The event loop of a process: what may end a coroutine, and what remains when an engine leaves."""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Awaitable
from typing import Any

import pyarrow as pa
import pytest

from foldflight import FunctionContext, FunctionError, RejectedError, udaf, udf
from foldflight.coroutines import eventloop
from foldflight.coroutines.eventloop import BlockedLoop, EventLoop, _raise_in
from foldflight.exchange.frames import UNBOUNDED, Chunk, Open
from foldflight.exchange.server_exchange import ServerExchange
from foldflight.functions import Call, Registry, Step, StepArgument
from foldflight.functions.author.spec import BoundFunction, BoundScalar

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


@udf
async def hold(x: int) -> int:
    await asyncio.sleep(0)
    ctypes.PyDLL(None).usleep(1_300_000)  # as C code that does not release the lock of the interpreter
    await asyncio.sleep(0)
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


FUNCTIONS = Registry.load([echo, Kept, NeverOpen, CancelledOpen, NeverClosed, SlowToClose, hold])


class LeftError(Exception):
    """The engine has left."""


def leave() -> None:
    raise LeftError


def open_exchange(loop: EventLoop, *functions: str, check: Any = lambda: None) -> ServerExchange:
    steps = tuple(Step(name, (StepArgument("x"),)) for name in functions)
    request = Open((), NUMBER, steps=steps, outputs=tuple(range(len(steps))))
    return ServerExchange(request, FUNCTIONS, limits=UNBOUNDED, server_id="here", coroutines=loop, check=check)


def test_an_interrupt_that_comes_too_late_does_not_end_the_loop() -> None:
    """Code that held up the loop may return just before it is interrupted. The loop then goes on."""
    loop = EventLoop()
    ended_calls = []

    async def note() -> None:
        ended_calls.append(1)

    loop.run("echo", note(), lambda: None)
    running_loop = loop._process.running_loop
    assert running_loop is not None
    _raise_in(running_loop.thread, BlockedLoop)  # it is idle, so this is raised within the loop itself

    def check() -> None:
        assert running_loop.thread.is_alive()

    for _ in range(3):
        loop.run("echo", note(), check)
    assert len(ended_calls) == 4


def test_a_class_that_cannot_be_instantiated_is_refused_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of a class that is refused while it is instantiated has its own code, with `async` and without."""

    class Plain:
        def eval(self, x: int) -> int:
            return x

    class Waits:
        async def eval(self, x: int) -> int:
            return x

    class Own:
        def create_accumulator(self) -> list[int]:
            return []

        def accumulate(self, xs: list[int], x: int) -> None:
            xs.append(x)

        def get_value(self, xs: list[int]) -> int:
            return sum(xs)

    class WaitingOwn(Own):
        async def get_value(self, xs: list[int]) -> int:  # type: ignore[override]
            return sum(xs)

    def refuse(*_: object) -> None:
        raise RejectedError("SETTINGS", "there is no Java here")

    monkeypatch.setattr(BoundScalar, "instantiate", refuse)
    monkeypatch.setattr(BoundFunction, "instantiate", refuse)
    for refused_function in (udf(Plain), udf(Waits), udaf(Own), udaf(WaitingOwn)):
        functions = Registry.load([refused_function])
        (function,) = functions.authored
        request = Open((), NUMBER, steps=(Step(function.name, (StepArgument("x"),)),), outputs=(0,))
        if issubclass(function.source, Own):
            request = Open((Call(function.name, ("x",)),), NUMBER)
        with pytest.raises(RejectedError, match="there is no Java here") as excinfo:
            ServerExchange(request, functions, limits=UNBOUNDED, server_id="here", coroutines=EventLoop())
        assert excinfo.value.code == "SETTINGS"


def test_an_open_that_was_cancelled_has_failed() -> None:
    """A class whose `open` did not come to its end is not used."""
    with pytest.raises(FunctionError, match="cancelled by its own code"):
        open_exchange(EventLoop(), "cancelled_open")


def test_an_engine_that_leaves_while_functions_open_keeps_no_instance_in_use() -> None:
    """The error is the engine's leaving, and instances that were opened before are unused then."""
    CLOSED.clear()
    loop = EventLoop()
    with pytest.raises(LeftError):
        open_exchange(loop, "kept", "never_open", check=leave)
    loop.close_instances()
    assert CLOSED == ["kept"]


def test_the_close_of_an_aggregate_ends_after_its_engine_has_left() -> None:
    """The instance belongs to the process: no exchange whose engine leaves closes it, or ends its `close`."""
    CLOSED.clear()
    loop = EventLoop()
    columns = pa.schema([("slot", pa.int32()), ("x", pa.int64())])
    request = Open((Call("slow_to_close", ("x",)),), columns)
    exchange = ServerExchange(request, FUNCTIONS, limits=UNBOUNDED, server_id="here", coroutines=loop, check=leave)
    exchange.close()
    assert not CLOSED
    loop.close_instances()
    assert CLOSED == ["aggregate"]


def test_a_process_keeps_few_instances_and_functions_that_nobody_uses(monkeypatch) -> None:
    """Many sets of job parameters and many functions leave a bounded number of models and queues in memory."""
    monkeypatch.setattr(eventloop, "_FUNCTIONS_MAX", 4)
    CLOSED.clear()
    loop = EventLoop()
    for number in range(20):
        function = udf(name=f"bounded_{number}")(bounded_class(number))
        functions = Registry.load([function])
        request = Open((), NUMBER, steps=(Step(f"bounded_{number}", (StepArgument("x"),)),), outputs=(0,))
        exchange = ServerExchange(request, functions, limits=UNBOUNDED, server_id="here", coroutines=loop)
        list(exchange.handle(Chunk(pa.RecordBatch.from_pydict({"x": [1]}, schema=NUMBER))))
        exchange.close()
    process = loop._process
    assert process.running_loop is not None
    assert len(process.running_loop.functions) <= 4 + 2
    assert [f"bounded {number}" for number in range(12)] == CLOSED, "the newest eight are kept"


def bounded_class(number: int) -> type:
    class Bounded:
        async def eval(self, x: int) -> int:
            return x + number

        def close(self) -> None:
            CLOSED.append(f"bounded {number}")

    return Bounded


def test_an_instance_that_does_not_close_holds_up_nobody(monkeypatch, caplog) -> None:
    """A server that ends cancels a `close` that hangs, and logs its function."""
    monkeypatch.setattr(eventloop, "_CLOSE_S", 0.2)
    loop = EventLoop()
    open_exchange(loop, "never_closed").close()
    loop.close_instances()
    assert "never_closed: close raised TimeoutError" in caplog.text


def test_code_that_has_the_lock_of_the_interpreter_is_named(caplog) -> None:
    """No thread can look while C code has the lock, so the step that took long is named when it has ended."""
    loop = EventLoop()
    loop.run("echo", asyncio.sleep(0), lambda: None)
    running_loop = loop._process.running_loop
    assert running_loop is not None
    first = hold.__code__.co_firstlineno
    with caplog.at_level(logging.WARNING, "foldflight.coroutines"):
        for _ in range(2):
            assert asyncio.run(_await(running_loop.watch("hold", hold(1)))) == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "code of hold has held up" in line
    assert f"from test_eventloop.py:{first + 2} to test_eventloop.py:{first + 4}" in line


def test_calls_are_watched(caplog) -> None:
    """The calls of rows are watched so; a thread that looks just then may be the first to name the place."""
    with caplog.at_level(logging.WARNING, "foldflight.coroutines"):
        exchange = open_exchange(EventLoop(), "hold")
        list(exchange.handle(Chunk(pa.RecordBatch.from_pydict({"x": [1]}, schema=NUMBER))))
        exchange.close()
    assert "hold" in caplog.text
    assert "test_eventloop.py" in caplog.text


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
