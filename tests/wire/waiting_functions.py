"""Async functions that ask the model of `tests.model_server`, whose port is in the environment of the server."""

from __future__ import annotations

import asyncio
import json
import os
import time

from foldflight import FunctionContext, FunctionError, udaf, udf

OPENED: list[str] = []
CLOSED: list[str] = []


class ModelError(Exception):
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        super().__init__(f"the model answered {status}")
        self.status, self.headers = status, headers


async def ask(port: int, prompt: str, call_id: str) -> str:
    """Ask the model over a connection of its own, which ends if the call is cancelled."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = json.dumps({"prompt": prompt, "id": call_id}).encode()
        writer.write(b"POST / HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not head:
        raise ConnectionError("the model closed the connection")
    first, *lines = head.decode().split("\r\n")
    status = int(first.split()[1])
    headers = dict(line.split(": ", 1) for line in lines)
    if status >= 400:
        raise ModelError(status, headers)
    if len(answer) < int(headers["content-length"]):
        raise ConnectionError("the model closed the connection in the middle of the answer")
    return json.loads(answer)["text"]


@udf(concurrency=32, retries=4, timeout_s=20)
class Asking:
    """Ask the model about a text."""

    async def open(self, context: FunctionContext) -> None:
        self.context = context
        self.port = int(os.environ["MODEL_PORT"])
        OPENED.append(type(self).__name__)

    async def eval(self, prompt: str) -> str:
        self.context.logger.info("asks", prompt=prompt)
        return await ask(self.port, prompt, self.context.call_id)

    async def close(self) -> None:
        CLOSED.append(type(self).__name__)


@udf(concurrency=1000, retries=4, timeout_s=120)
class AskingMany(Asking):
    """Ask the model about a thousand texts at once."""


@udf(rate=60)
class Paced(Asking):
    """Ask the model about sixty texts a second, at most."""


@udf(retries=2, timeout_s=2)
class Impatient(Asking):
    """Ask the model about a text, and again if it does not answer within two seconds."""


@udf
async def leaking(prompt: str) -> str:
    """Put a key into an exception, as clients of models do."""
    raise ValueError(f"the key {os.environ['MODEL_KEY']} is refused for {prompt!r}")


@udf(batch=64, concurrency=1, batch_wait_s=0.05, retries=0)
class Batched:
    """Return for each number how many came with it; fail for a negative one."""

    def open(self, context: FunctionContext) -> None:
        self.context = context

    async def eval(self, xs: list[int]) -> list[int]:
        self.context.logger.info("a batch", of=" ".join(map(str, xs)))
        await asyncio.sleep(0.02)
        if min(xs) < 0:
            raise ValueError(f"negative: {min(xs)}")
        return [len(xs)] * len(xs)


@udf(timeout_s=0.5, retries=0)
async def blocking(x: int) -> int:
    """Hold up the event loop, in Python code."""
    began = time.monotonic()
    while x and time.monotonic() < began + 60:
        time.sleep(0.01)  # noqa: ASYNC251 - what it is there to do
    return x


@udf
async def endless(x: int) -> int:
    """Wait for ever."""
    await asyncio.sleep(3600 if x else 0)
    return x


@udf(rate=1000)
async def rated(x: int) -> int:
    """Return the number."""
    return x


@udaf(concurrency=8, retries=2)
class Summary:
    """Ask the model about the texts of a group."""

    async def open(self, context: FunctionContext) -> None:
        self.context = context
        self.port = int(os.environ["MODEL_PORT"])

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, texts: list[str], text: str) -> None:
        texts.append(text)

    def retract(self, texts: list[str], text: str) -> None:
        texts.remove(text)

    def merge(self, texts: list[str], others: list[str]) -> None:
        texts += others

    async def get_value(self, texts: list[str]) -> str:
        return await ask(self.port, " ".join(sorted(texts)), self.context.call_id)


@udaf(batch=64, concurrency=1, batch_wait_s=0.05, retries=0)
class TextsOf:
    """Return for each group its texts, and how many groups were in the call; fail for a group with a text `bad`."""

    def open(self, context: FunctionContext) -> None:
        OPENED.append("TextsOf")
        self.context = context

    def create_accumulator(self) -> set[str]:
        return set()

    def accumulate(self, texts: set[str], text: str) -> None:
        self.context.logger.info("takes", taken=text)
        texts.add(text)

    def merge(self, texts: set[str], others: set[str]) -> None:
        texts |= others

    async def get_values(self, groups: list[set[str]]) -> list[str]:
        await asyncio.sleep(0.02)
        if any("bad" in texts for texts in groups):
            raise ValueError("a text is bad")
        return [f"{' '.join(sorted(texts))}: {len(groups)}" for texts in groups]

    def close(self) -> None:
        CLOSED.append("TextsOf")


FAILED: list[str] = []


async def fail_once(text: str) -> None:
    """Lose the connection for the first call with a text."""
    if text not in FAILED:
        FAILED.append(text)
        raise ConnectionError("the model closed the connection")


@udf(retries=1)
async def emptied(numbers: list[int]) -> int:
    """Return a sum of numbers, and leave none of them in the list."""
    total = sum(numbers)
    numbers.clear()
    await fail_once(f"emptied {total}")
    return total


@udaf(retries=1)
class EmptiedGroup:
    """Return the sum of numbers, and leave none of them in the accumulator."""

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, numbers: list[float], number: int) -> None:
        numbers.append(number)

    def merge(self, numbers: list[float], others: list[float]) -> None:
        numbers += others

    async def get_value(self, numbers: list[float]) -> float:
        total = sum(numbers)
        numbers.clear()
        await fail_once(f"Emptied {total}")
        return total


@udaf(retries=1, batch=4)
class Refusing:
    """Raise an error of foldflight for all groups."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, count: int, number: int) -> int:
        return count + 1

    async def get_values(self, counts: list[int]) -> list[int]:
        raise FunctionError("USER_CODE", "not now")
