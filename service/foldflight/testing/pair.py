"""Both ends of an exchange in memory. Every frame is encoded and decoded between them.

For authors of engines: it shows which frames an engine sends and how a server answers, without a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from foldflight.client.exchange import PROGRAMS
from foldflight.exchange.encoding import decode, decode_open, encode, encode_open
from foldflight.exchange.frames import (
    Barrier,
    Checkpoint,
    Chunk,
    EngineFrame,
    Entries,
    Forget,
    Frame,
    Limits,
    Open,
    States,
    Wanted,
    check_chunk,
)
from foldflight.exchange.server_exchange import ServerExchange
from foldflight.exchange.transitions import Answer, EngineExchange, Role
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Registry

LIMITS = Limits(
    message_bytes_max=2**24,
    slots_max=2**20,
    state_bytes_max=2**20,
    exchange_state_bytes_max=2**24,
    exchanges_max=1,
    idle_s_max=60.0,
    age_s_max=3600.0,
)


class EngineEnd(EngineExchange):
    """An engine's end of an exchange. Its operations return the frame to send."""

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> Frame:
        """Merge states into slots: columns `slot` int32 and one `state_i` for each call."""
        return self._give(States(batch, unanswered=unanswered))

    def entries(self, batch: pa.RecordBatch, *, last: bool = False) -> Frame:
        """Give entries of views. `last`: whether this is the last part of an answer to `Wanted`."""
        return self._give(Entries(batch, last=last))

    def chunk(self, batch: pa.RecordBatch) -> Frame:
        """Fold the rows of a batch. Its schema is `Open.columns`."""
        check_chunk(batch, self.open_request)
        return self._give(Chunk(batch))

    def forget(self, slots: pa.Int32Array) -> Frame:
        """Drop the accumulators of these slots."""
        return self._give(Forget(slots))

    def barrier(self, epoch: int) -> Frame:
        """End an epoch; the answer is its results."""
        return self._give(Barrier(epoch))

    def checkpoint(self, *, if_reopen: bool = False) -> Frame:
        """Request states within an epoch. `if_reopen`: only if the server wants the exchange to be reopened."""
        return self._give(Checkpoint(if_reopen=if_reopen))

    def _give(self, frame: EngineFrame) -> Frame:
        self.step(Role.ENGINE, frame)
        return frame


class ExchangePair:
    """An engine's end and a server's end of one exchange.

    Args:
        open_request: The frame that opens the exchange.
        registry: The server's functions.
        limits: The server's limits.
        signer: Signs pickled states.
        resolve: Answers the server's questions for entries of views, if the engine keeps them.

    Attributes:
        engine: The engine's end. It makes the frames for `send`, and checks the replies.
        server: The server's end.
        resolve: Answers questions, as given.
        replies: All replies so far, `Opened` first.
        answers: The complete answers that have not been taken, oldest first.

    Raises:
        RejectedError: UNKNOWN_FUNCTION, SCHEMA_MISMATCH or SIGNATURE, for an Open that the server refuses; SETTINGS, if
            states would be pickled and there is no signer.
        FunctionError: USER_CODE, if a class cannot be instantiated or its `open` raises.

    >>> import pyarrow as pa
    >>> from foldflight.exchange.frames import Open
    >>> from foldflight.functions import Call, Registry
    >>> from foldflight.testing import ExchangePair
    >>> pair = ExchangePair(Open((Call("count"),), pa.schema([("slot", pa.int32())])), Registry())
    >>> pair.send(pair.engine.chunk(pa.RecordBatch.from_pydict({"slot": pa.array([0, 0, 3], pa.int32())})))
    []
    >>> pair.epoch(1).select(["slot", "output_0"]).to_pylist()
    [{'slot': 0, 'output_0': 2}, {'slot': 3, 'output_0': 1}]
    """

    def __init__(
        self,
        open_request: Open,
        registry: Registry,
        *,
        limits: Limits = LIMITS,
        signer: StateSigner | None = None,
        resolve: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]] | None = None,
    ) -> None:
        self.resolve = resolve
        self.engine = EngineEnd(open_request)
        self.server = ServerExchange(
            decode_open(encode_open(open_request)),
            registry,
            limits=limits,
            server_id="in memory",
            signer=signer,
            accelerator=PROGRAMS,
            ask=self._ask,
        )
        self._columns = open_request.columns
        self.replies: list[Frame] = []
        self.answers: deque[Answer] = deque()
        self._arrive(self.server.open_reply)

    def send(self, frame: Frame) -> list[Frame]:
        """Send a frame to the server, and return its replies after the engine's end has checked them.

        Raises:
            FoldflightError: The server's error. It ends the exchange.
        """
        before = len(self.replies)
        for reply in self.server.handle(decode(encode(frame, self._columns), Role.ENGINE)):
            self._arrive(reply)
        return self.replies[before:]

    def epoch(self, number: int) -> pa.Table:
        """Send a barrier and return its results: one row for each dirty slot, ascending, in the schema of `Opened`."""
        self.send(self.engine.barrier(number))
        if not self.answers:
            raise AssertionError(f"the server answered barrier {number} without a last batch")
        return self.answers.pop()

    def _ask(self, question: Frame) -> Iterator[Frame]:
        self._arrive(question)
        assert isinstance(question, Wanted)
        assert self.resolve is not None
        columns = [name for name in question.batch.schema.names if name == "slot" or name.startswith("state_")]
        batches = list(self.resolve(question.batch.select(columns)))
        for index, batch in enumerate(batches, 1):
            frame = self.engine.entries(batch, last=index == len(batches))
            yield decode(encode(frame, self._columns), Role.ENGINE)

    def _arrive(self, frame: Frame) -> None:
        decoded_frame = decode(encode(frame, self.server.open_reply.schema), Role.SERVER)
        answer = self.engine.receive(decoded_frame)
        if answer is not None:
            self.answers.append(answer)
        self.replies.append(decoded_frame)
