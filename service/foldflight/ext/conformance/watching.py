"""The rules for an engine's frames, and the record of what a strict server saw of its engine."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from foldflight.exchange.encoding import Message
from foldflight.exchange.frames import Barrier, Chunk, Forget, Frame, Opened, States
from foldflight.ext.conformance.rules import Rule
from foldflight.functions import RowKind
from foldflight.server.calls import send

# If a write takes longer, the engine does not read.
_BLOCKED_S: Final = 3.0
_SETTLE_S: Final = 2.0

_RULES = (
    Rule(
        "open",
        "The command of the descriptor is an Open of version 1, and the schema of the stream equals Open.columns.",
        "Serialize the schema of the stream itself into Open.columns.",
    ),
    Rule(
        "frames",
        "Each message is a record batch with an EngineFrame as app_metadata. Only the batch of a Chunk has rows. "
        "States have the columns `slot` and `state_i` for each call.",
        "Send other frames on a batch of zero rows in the schema of the stream.",
    ),
    Rule(
        "epochs",
        "The first barrier of an exchange has any number. Each later one has the number of the previous one plus one.",
        "Count epochs for each exchange.",
    ),
    Rule(
        "slots",
        "Slots are int32 without NULLs, at least 0 and below slots_max of Opened.",
        "Give the groups of an exchange dense numbers, and forget those that are not needed.",
    ),
    Rule(
        "kinds",
        "Kinds are 0 to 3. 1 and 3 are only sent if can_retract is true for each call in Opened.",
        "Check can_retract in Opened, or in GetFlightInfo when the query is planned, before sending retractions.",
    ),
    Rule(
        "state-identity",
        "States are sent with the metadata of the field in which they were received: function, version, fingerprint "
        "and codec.",
        "Store the metadata of the field with the states.",
    ),
    Rule(
        "message-size",
        "No message is larger than message_bytes_max of Opened.",
        "Split chunks and states by bytes. The results do not depend on the split.",
    ),
    Rule(
        "reads-answers",
        "The engine reads answers while it sends, so that the server's writes do not block.",
        "Before each send, read all answers that are due, or read in a separate thread.",
    ),
    Rule(
        "polite-end",
        "An engine ends an exchange by closing its direction of the stream and reading the other to its end.",
        "Half-close (done_writing), then read until the stream ends. Cancel only after errors.",
    ),
)
ENGINE_FRAME_RULES: Final = {rule.name: rule for rule in _RULES}


class Record:
    """The record of one run, shared by all its exchanges. Safe for threads.

    Attributes:
        broken: The first breach of each rule, by the rule's name.
        seen: Counts of frames by name, including Open, and as `at once` the largest number of open exchanges.
        provoked: How often the provocation took place.
        message_bytes: Size of the largest message.
        opens_after_error: How many exchanges were opened after an error that is not retryable had been sent.
    """

    def __init__(self) -> None:
        self.broken: dict[str, str] = {}
        self.seen: Counter[str] = Counter()
        self.provoked = 0
        self.message_bytes = 0
        self.opens_after_error = 0
        self._changed = threading.Condition()
        self._has_refused = False
        self._now_open = 0
        self._writes: dict[int, float] = {}

    def breach(self, rule: str, detail: str) -> None:
        """Record that a rule was broken."""
        with self._changed:
            self.broken.setdefault(rule, detail)

    def provoke(self) -> int:
        """Record that the provocation takes place, and return how often it has."""
        with self._changed:
            self.provoked += 1
            return self.provoked

    def provoke_once(self) -> bool:
        """Record that the provocation takes place, unless it already has. Return whether it takes place now."""
        with self._changed:
            if self.provoked:
                return False
            self.provoked = 1
            return True

    def refusing(self) -> None:
        """Record that an error that is not retryable is sent."""
        with self._changed:
            self._has_refused = True

    def opened(self) -> None:
        """Record that an exchange was opened."""
        with self._changed:
            self.opens_after_error += self._has_refused
            self._now_open += 1
            self.seen["Open"] += 1
            self.seen["at once"] = max(self.seen["at once"], self._now_open)
            self._changed.notify_all()

    def ended(self) -> None:
        """Record that an exchange has ended."""
        with self._changed:
            self._now_open -= 1
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait up to two seconds for exchanges to end, and record writes that are still blocked."""
        with self._changed:
            self._changed.wait_for(lambda: not self._now_open, _SETTLE_S)
        for since_s in list(self._writes.values()):
            self._look_at(since_s)

    def await_open(self, timeout_s: float) -> bool:
        """Wait until another exchange is opened. Return whether it was within `timeout_s`."""
        with self._changed:
            before = self.seen["Open"]
            return self._changed.wait_for(lambda: self.seen["Open"] > before, timeout_s)

    def frame(self, name: str, size: int) -> None:
        """Record a frame of the engine and its size in bytes."""
        with self._changed:
            self.seen[name] += 1
            self.message_bytes = max(self.message_bytes, size)

    def write(self, writer: Any, message: Message, *, begin: pa.Schema | None = None) -> None:
        """Send a message, and record if the engine does not read it in time."""
        me = threading.get_ident()
        self._writes[me] = time.monotonic()
        try:
            send(writer, message, begin=begin)
        finally:
            self._look_at(self._writes.pop(me))

    def _look_at(self, since_s: float) -> None:
        if time.monotonic() - since_s > _BLOCKED_S:
            self.breach("reads-answers", f"an answer could not be written for more than {_BLOCKED_S:g} s")


@dataclass
class Observed:
    """One exchange, and what its engine has sent so far.

    Args:
        opened: The server's answer.
        record: The record for breaches.
        epoch: The number of the last barrier; None before the first.
        barriers_after_reopen: The number of barriers since results with `reopen`; None before those.
    """

    opened: Opened
    record: Record
    epoch: int | None = None
    barriers_after_reopen: int | None = None

    def check(self, frame: Frame) -> None:
        """Record the rules that a frame breaks."""
        match frame:
            case Chunk():
                self._check_slots(frame.batch)
                self._check_kinds(frame.batch)
            case States():
                self._check_slots(frame.batch)
                self._check_identity(frame.batch)
            case Forget():
                self._check_range(frame.slots)
            case Barrier():
                self._check_epoch(frame.epoch)
            case _:
                pass

    def _check_slots(self, batch: pa.RecordBatch) -> None:
        if batch.schema.names.count("slot") == 1:
            self._check_range(batch.column("slot"))

    def _check_range(self, slots: pa.Array) -> None:
        bound = self.opened.limits.slots_max
        if slots.type != pa.int32() or slots.null_count:
            self.record.breach("slots", f"slots have the type {slots.type} and {slots.null_count} NULLs")
            return
        wrong = [slot for slot in slots.to_pylist() if not 0 <= slot < bound]
        if wrong:
            self.record.breach("slots", f"slot {wrong[0]} is out of range; slots_max is {bound}")

    def _check_kinds(self, batch: pa.RecordBatch) -> None:
        if "kind" not in batch.schema.names:
            return
        kinds = set(batch.column("kind").to_pylist())
        known = set(map(int, RowKind))
        if kinds - known:
            self.record.breach("kinds", f"unknown kinds {sorted(map(str, kinds - known))}")
        takes_back = kinds & {int(RowKind.UPDATE_BEFORE), int(RowKind.DELETE)}
        if takes_back and not all(self.opened.can_retract):
            self.record.breach("kinds", f"rows of kinds {sorted(takes_back)} for a call that cannot retract")

    def _check_identity(self, batch: pa.RecordBatch) -> None:
        for field in batch.schema:
            if not field.name.startswith("state_") or self.opened.schema.get_field_index(field.name) < 0:
                continue
            expected = self.opened.schema.field(field.name).metadata
            given = field.metadata or {}
            missing = [key.decode() for key in expected if key not in given]
            if missing:
                self.record.breach("state-identity", f"the metadata of {field.name} lack {', '.join(missing)}")

    def _check_epoch(self, epoch: int) -> None:
        if self.epoch is not None and epoch != self.epoch + 1:
            self.record.breach("epochs", f"epoch {epoch} after epoch {self.epoch}")
        self.epoch = epoch
        if self.barriers_after_reopen is not None:
            self.barriers_after_reopen += 1
