"""What a strict server sees of its engines: the rules for frames, and which of them were broken."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from foldflight.exchange.codec import Message
from foldflight.exchange.frames import Barrier, Chunk, Forget, Frame, Open, Opened, States
from foldflight.functions import RowKind
from foldflight.testing.conformance.rules import Rule

__all__ = ["ENGINE_FRAME_RULES", "HungUpError", "Observed", "Record"]

# A write that takes longer is one whose engine does not read.
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
        "Each message is a record batch with an EngineFrame as app_metadata; only Chunks have rows, and states have "
        "`slot` and a `state_i` for each call.",
        "Send frames without data on a batch of zero rows in the schema of the stream.",
    ),
    Rule(
        "epochs",
        "The first barrier of an exchange has any number, each later one that of the one before plus one.",
        "Count epochs for each exchange.",
    ),
    Rule(
        "slots",
        "Slots are int32 without NULLs, at least 0 and below slots_max of Opened.",
        "Number the groups of an exchange densely, and forget those that are not needed.",
    ),
    Rule(
        "kinds",
        "Kinds are 0 to 3; 1 and 3 are only sent where Opened says can_retract for each call.",
        "Look at Opened, or at GetFlightInfo when the query is planned, before rows are taken back.",
    ),
    Rule(
        "state-identity",
        "States go back with the metadata of the column that they came in: function, version, fingerprint, codec.",
        "Store the field's metadata with the states, and send them with it.",
    ),
    Rule(
        "message-size",
        "No message is larger than message_bytes_max of Opened.",
        "Cut chunks and states by bytes; a fold does not see where a chunk is cut.",
    ),
    Rule(
        "reads-answers",
        "While an answer is due the engine reads: in another thread, or before it sends more.",
        "Read until every due answer has come before each send, or read in a thread of its own.",
    ),
    Rule(
        "polite-end",
        "An engine that has enough closes its direction of the stream and reads to the end of the other.",
        "Half-close (done_writing), then read until the stream ends; cancel only after errors.",
    ),
)
ENGINE_FRAME_RULES: Final = {rule.name: rule for rule in _RULES}


class HungUpError(Exception):
    """The engine has cancelled its stream."""


class Record:
    """What engines did in one run; shared by all exchanges, and safe for threads.

    Attributes:
        broken: The first breach of each rule, by its name.
        seen: Counts of frames by name, Open among them, and `at once`: the most exchanges that were open together.
        provoked: How often the provocation took place.
        message_bytes: Size of the largest message.
        opens_after_error: How many exchanges were opened after an error of the job was sent.
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
        """Note that a rule was broken."""
        with self._changed:
            self.broken.setdefault(rule, detail)

    def provoke(self) -> int:
        """Note that the provocation takes place, and return how often it has."""
        with self._changed:
            self.provoked += 1
            return self.provoked

    def provoke_once(self) -> bool:
        """Note that the provocation takes place, unless it has; return whether it does."""
        with self._changed:
            if self.provoked:
                return False
            self.provoked = 1
            return True

    def refusing(self) -> None:
        """Note that an error of the job is sent."""
        with self._changed:
            self._has_refused = True

    def opened(self) -> None:
        """Note an exchange."""
        with self._changed:
            self.opens_after_error += self._has_refused
            self._now_open += 1
            self.seen["Open"] += 1
            self.seen["at once"] = max(self.seen["at once"], self._now_open)
            self._changed.notify_all()

    def ended(self) -> None:
        """Note the end of an exchange."""
        with self._changed:
            self._now_open -= 1
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait a little for exchanges to end, and notice writes that are blocked then."""
        with self._changed:
            self._changed.wait_for(lambda: not self._now_open, _SETTLE_S)
        for since_s in list(self._writes.values()):
            self._look_at(since_s)

    def await_open(self, timeout_s: float) -> bool:
        """Return whether another exchange is opened in time."""
        with self._changed:
            before = self.seen["Open"]
            return self._changed.wait_for(lambda: self.seen["Open"] > before, timeout_s)

    def frame(self, name: str, size: int) -> None:
        """Note a frame of the engine."""
        with self._changed:
            self.seen[name] += 1
            self.message_bytes = max(self.message_bytes, size)

    def write(self, writer: Any, message: Message, *, begin: pa.Schema | None = None) -> None:
        """Send a message, and notice where the engine does not take it."""
        me = threading.get_ident()
        self._writes[me] = time.monotonic()
        try:
            if begin is not None:
                writer.begin(begin)
            writer.write_with_metadata(message.batch, message.metadata)
        except (pa.ArrowException, OSError):
            raise HungUpError from None  # an answer cannot be written only when nobody is there to read it
        finally:
            self._look_at(self._writes.pop(me))

    def _look_at(self, since_s: float) -> None:
        if time.monotonic() - since_s > _BLOCKED_S:
            self.breach("reads-answers", f"an answer could not be written for more than {_BLOCKED_S:g} s")


@dataclass
class Observed:
    """One exchange, as far as its engine's frames have come.

    Args:
        opening: What was asked for.
        opened: What was answered.
        record: Where breaches go.
    """

    opening: Open
    opened: Opened
    record: Record
    epoch: int | None = None
    barriers: int = 0
    barriers_after_reopen: int | None = None

    def check(self, frame: Frame) -> None:
        """Note which rules a frame breaks."""
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
            self.record.breach("slots", f"{slots.null_count} NULLs in slots of type {slots.type}")
            return
        wrong = [slot for slot in slots.to_pylist() if not 0 <= slot < bound]
        if wrong:
            self.record.breach("slots", f"slot {wrong[0]}, and slots_max is {bound}")

    def _check_kinds(self, batch: pa.RecordBatch) -> None:
        if "kind" not in batch.schema.names:
            return
        kinds = set(batch.column("kind").to_pylist())
        known = set(map(int, RowKind))
        if kinds - known:
            self.record.breach("kinds", f"kinds {sorted(map(str, kinds - known))}")
        takes_back = kinds & {int(RowKind.UPDATE_BEFORE), int(RowKind.DELETE)}
        if takes_back and not all(self.opened.can_retract):
            self.record.breach("kinds", f"kinds {sorted(takes_back)} for a call that cannot retract")

    def _check_identity(self, batch: pa.RecordBatch) -> None:
        for field in batch.schema:
            if not field.name.startswith("state_") or self.opened.schema.get_field_index(field.name) < 0:
                continue
            expected = self.opened.schema.field(field.name).metadata
            given = field.metadata or {}
            missing = [key.decode() for key in expected if key not in given]
            if missing:
                self.record.breach("state-identity", f"{field.name} came back without {', '.join(missing)}")

    def _check_epoch(self, epoch: int) -> None:
        if self.epoch is not None and epoch != self.epoch + 1:
            self.record.breach("epochs", f"epoch {epoch} after epoch {self.epoch}")
        self.epoch = epoch
        self.barriers += 1
        if self.barriers_after_reopen is not None:
            self.barriers_after_reopen += 1
