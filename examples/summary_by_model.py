"""Summaries of groups by a model: a sample of texts within a budget of tokens, and a tree of prompts.

The state keeps the texts with the smallest hashes whose tokens fit into the budget, and the hash of the first one that
does not. So it depends neither on the order of rows nor on how they were split, it merges, and its size is bounded. At
the end of an epoch the texts of each group that changed are packed into prompts; their answers are packed again, until
one answer is left.

The model is any service that answers `{"prompt": ..., "id": ...}` with `{"text": ...}`; MODEL_HOST and MODEL_PORT of
the environment of the servers say where it is. Replace `ask` for another one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from foldflight import FunctionContext, udaf

CHARS_PER_TOKEN = 4  # about, for European languages
HASH_BYTES = 8
PROMPTS_OPEN_MAX = 16  # of all groups of a process
PAUSES_S = (0.1, 0.4, 1.6)  # before a prompt is asked again
REFUSALS = range(400, 429)  # statuses of prompts that are refused for good; 429 and 500 pass


def tokens_of(text: str) -> int:
    """Return about the number of tokens of a text."""
    return len(text) // CHARS_PER_TOKEN + 1


def order_of(text: str) -> bytes:
    """Return the place of a text in the sample: a hash, so that the sample is fair."""
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


@dataclass
class Texts:
    """The sample of a group: texts in the order of their hashes, the number of all texts, and where the sample ends."""

    kept: list[str] = field(default_factory=list)
    count: int = 0
    end: bytes = b"\xff" * HASH_BYTES

    def add(self, other: Texts, budget: int) -> None:
        """Add other texts, and keep those with the smallest hashes that fit into the budget of tokens.

        The first text that does not fit ends the sample, also for texts that come later: they may be small enough for
        the rest of the budget, but would not have been taken if they had come before.
        """
        self.count += other.count
        self.end = min(self.end, other.end)
        used, kept = 0, []
        for text in sorted([*self.kept, *other.kept], key=order_of):
            used += tokens_of(text)
            if used > budget:
                self.end = min(self.end, order_of(text))
            if used > budget or order_of(text) > self.end:
                break
            kept.append(text)
        self.kept = kept


@udaf(concurrency=8, timeout_s=45, retries=1)
class SummaryByModel:
    """Return a summary of the texts of a group by a model; NULL for no texts."""

    def __init__(self, budget: int = 8000, prompt: int = 1000) -> None:
        self.budget, self.prompt = budget, prompt

    def open(self, context: FunctionContext) -> None:
        self.context = context
        self.prompts_open = asyncio.Semaphore(PROMPTS_OPEN_MAX)
        self.host, self.port = os.environ.get("MODEL_HOST", "127.0.0.1"), int(os.environ["MODEL_PORT"])

    def create_accumulator(self) -> Texts:
        return Texts()

    def accumulate(self, texts: Texts, text: str | None) -> None:
        if text is not None:
            # No prompt has more of it, and one long text must not take the place of the whole sample.
            part = text[: (min(self.prompt // 2, self.budget) - 1) * CHARS_PER_TOKEN]
            texts.add(Texts([part], 1), self.budget)

    def merge(self, texts: Texts, other: Texts) -> None:
        texts.add(other, self.budget)

    async def get_value(self, texts: Texts) -> str | None:
        level, height = texts.kept, 0
        while level and (height == 0 or len(level) > 1):
            prompts = list(self.packed(level))
            # The id of each call differs, and is the same if the value is computed again.
            ids = [f"{self.context.call_id}-{height}-{index}" for index in range(len(prompts))]
            asked = [asyncio.create_task(self.ask(*each)) for each in zip(prompts, ids, strict=True)]
            try:
                level = await asyncio.gather(*asked)
            finally:
                for each in asked:  # if one fails for good, the others need not be asked
                    each.cancel()
            height += 1
        return level[0] if level else None

    def packed(self, texts: list[str]) -> Iterator[str]:
        """Yield prompts of at least two texts, if there are so many, so that each level is half of the last one."""
        half = self.prompt // 2 * CHARS_PER_TOKEN
        pack: list[str] = []
        used = 0
        for text in texts:
            part = text[: half - CHARS_PER_TOKEN]
            if len(pack) >= 2 and used + tokens_of(part) > self.prompt:
                yield "\n".join(pack)
                pack, used = [], 0
            pack.append(part)
            used += tokens_of(part)
        yield "\n".join(pack)

    async def ask(self, prompt: str, call_id: str) -> str:
        """Ask a prompt, and again after an error that may pass: otherwise the whole tree would be asked again."""
        for pause_s in PAUSES_S:
            try:
                return await self.ask_once(prompt, call_id)
            except OSError as error:  # also if nobody listens
                if getattr(error, "status", None) in REFUSALS:
                    raise
            await asyncio.sleep(pause_s)
        return await self.ask_once(prompt, call_id)

    async def ask_once(self, prompt: str, call_id: str) -> str:
        async with self.prompts_open:
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                body = json.dumps({"prompt": prompt, "id": call_id}).encode()
                writer.write(b"POST / HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
        status = int(head.split()[1]) if head else None
        if status != 200:
            raise ModelError(status)
        return str(json.loads(answer)["text"])


class ModelError(OSError):
    """The model has answered with a status that is no success, or not at all."""

    def __init__(self, status: int | None) -> None:
        super().__init__("the model closed the connection" if status is None else f"the model answered {status}")
        self.status = status
