"""The frames of an exchange, as values.

`encoding` converts frames to bytes. `machine` defines the order in which frames may be sent. Received chunks and slots
are checked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import RejectedError
from foldflight.fold.mode import Folding, Mode
from foldflight.functions.author.context import LogRecord
from foldflight.functions.author.spec import AnyFunction, Function, FunctionKind
from foldflight.functions.query.call import Request
from foldflight.functions.types.sql import needs_zone, parse_type, sql_name
from foldflight.functions.types.views import ViewSpec

PROTOCOL_VERSION = 1
# Least number of bytes that a row of a chunk counts for: its slot. The server adds the slot if the chunk has none.
SLOT_BYTES = 4


@dataclass(frozen=True)
class Returns:
    """What Results carry.

    Args:
        states: Whether they carry states.
        outputs: Whether they carry outputs.
    """

    states: bool = True
    outputs: bool = True


@dataclass(frozen=True)
class Open(Request):
    """Begin an exchange. It has the arguments of `Request` and `Options`, and these.

    Each chunk of an exchange of steps is answered by `Mapped`.

    Args:
        returns: What Results carry.
        initial_outputs: Whether the server answers each States frame with the outputs of its slots. A frame with
            `unanswered` is the exception.
        trace_context: W3C trace context of the caller. Exchanges that differ only in it are equal, and bound once.
        bundles: Shipped functions, each a signed bundle (`shipping.bundles`).
        call_scope: What the engine computes, as text that is the same if it does so again: the query, its partition
            and, in a stream, the epoch. The ids of calls of async functions depend on it. It is left out of
            comparisons, as each task has its own. Empty: the server chooses one for the exchange.
        protocol_version: The protocol version of the engine.
    """

    returns: Returns = field(default_factory=Returns)
    _: KW_ONLY
    initial_outputs: bool = False
    trace_context: Mapping[str, str] = field(default_factory=dict, compare=False)
    bundles: tuple[bytes, ...] = field(default=(), repr=False)
    call_scope: str = field(default="", compare=False)
    protocol_version: int = PROTOCOL_VERSION

    @cached_property
    def maps(self) -> bool:
        """Whether the exchange maps rows with steps, instead of folding them with calls: it has no slots."""
        return bool(self.steps)

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """The name of the function of each call or step."""
        return tuple(map(attrgetter("function"), (*self.calls, *self.steps)))

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprint that the engine expects of each call or step; empty for any."""
        return tuple(map(attrgetter("fingerprint"), (*self.calls, *self.steps)))

    def pin(self, fingerprints: Sequence[str]) -> Open:
        """Return the same Open that expects these fingerprints of its calls or steps, so that others are refused."""
        if self.maps:
            steps = zip(self.steps, fingerprints, strict=True)
            return replace(self, steps=tuple(replace(step, fingerprint=fingerprint) for step, fingerprint in steps))
        calls = zip(self.calls, fingerprints, strict=True)
        return replace(self, calls=tuple(replace(call, fingerprint=fingerprint) for call, fingerprint in calls))

    @cached_property
    def _answers(self) -> dict[type[Frame], type[Frame] | None]:
        """The kind of the answer to each frame that an engine may send after Open; None if it has no answer."""
        if self.maps:
            return {Chunk: Mapped}
        kinds: dict[type[Frame], type[Frame] | None] = {Barrier: Results, Checkpoint: SavedStates, Forget: None}
        kinds[States] = InitialOutputs if self.initial_outputs else None
        kinds[Chunk] = Folded if self.keeps_views else RowOutputs if self.row_outputs else None
        if self.keeps_views:
            kinds[Entries] = None
        return kinds

    def answer_to(self, frame: Frame) -> type[Frame] | None:
        """Return the kind of the server's answer to a frame of the engine; None if it has no answer.

        Raises:
            RejectedError: BAD_FRAME, if an engine may not send such a frame in this exchange.
        """
        try:
            kind = self._answers[type(frame)]
        except KeyError:
            raise RejectedError("BAD_FRAME", self._why_not(frame)) from None
        return None if kind is InitialOutputs and frame.unanswered else kind  # type: ignore[union-attr]

    def _why_not(self, frame: Frame) -> str:
        """Return why an engine may not send a frame after this Open."""
        name = type(frame).__name__
        if isinstance(frame, Entries) and not self.maps:
            return f"{name} needs an Open with keeps_views"
        return f"the engine may not send {name} in an exchange of {'steps' if self.maps else 'calls'}"

    @cached_property
    def row_bytes(self) -> int | None:
        """The bytes that a row of a chunk has at most; None if the values of a column differ in size."""
        try:
            return sum(type_.bit_width // 8 + 1 for type_ in self.columns.types)
        except ValueError:
            return None

    def bytes_of(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of the rows of a chunk, or a little more. Arrow's count takes as long as a small fold."""
        return int(batch.nbytes) if self.row_bytes is None else batch.num_rows * self.row_bytes

    def rows_due(self, chunk: Chunk) -> int:
        """Return the number of rows of the RowOutputs that answer a chunk."""
        if not self.emits or "emit" not in chunk.batch.schema.names:
            return chunk.batch.num_rows
        return pc.sum(chunk.batch.column("emit"), min_count=0).as_py()


@dataclass(frozen=True)
class States:
    """Merge states into slots.

    Args:
        batch: n rows: `slot` int32 and `state_i` for each call. A NULL state means that there is no state. If Open
            requests initial outputs, a batch without rows requests the output of slot 0.
        unanswered: Whether the server omits the initial outputs of this frame although Open requests them.
    """

    batch: pa.RecordBatch
    unanswered: bool = False


@dataclass(frozen=True)
class Chunk:
    """Fold rows.

    Args:
        batch: n rows, in the schema `Open.columns`.
    """

    batch: pa.RecordBatch


@dataclass(frozen=True)
class Barrier:
    """End an epoch.

    Args:
        epoch: Number of the epoch. The first may be any number; each later one is its predecessor plus one.
    """

    epoch: int


@dataclass(frozen=True)
class Forget:
    """Drop accumulators.

    Args:
        slots: The slots of these accumulators, int32.
    """

    slots: pa.Int32Array


@dataclass(frozen=True)
class Checkpoint:
    """Return, within an epoch, the states that changed since states were last returned.

    The engine may then discard the chunks that it sent before. The results of the next barrier do not change.

    Args:
        if_reopen: Whether the server returns states only if it requests that the engine reopen the exchange.
    """

    if_reopen: bool = False


@dataclass(frozen=True)
class Entries:
    """Entries of views that the engine keeps, as of the last barrier or checkpoint.

    They do not replace what the server already knows of an entry.

    Args:
        batch: n rows: `slot` int32, and `state_i` for calls with views. In a state only views have values.
        last: In the answer to `Wanted`: whether this is its last part.
    """

    batch: pa.RecordBatch
    last: bool = False


@dataclass(frozen=True)
class Limits:
    """The bounds of a server.

    Args:
        message_bytes_max: Bytes of one message.
        slots_max: Number of slots of one exchange; every slot is below it.
        state_bytes_max: Bytes of one state.
        exchange_state_bytes_max: Bytes of all states that one barrier returns.
        exchanges_max: Number of exchanges that are open at once.
        idle_s_max: Seconds without a frame after which the server ends an exchange.
        age_s_max: Seconds after which the server requests that the engine reopen the exchange.
    """

    message_bytes_max: int
    slots_max: int
    state_bytes_max: int
    exchange_state_bytes_max: int
    exchanges_max: int
    idle_s_max: float
    age_s_max: float

    @classmethod
    def of(cls, source: object) -> Limits:
        """Return the bounds of an object whose attributes have the same names: settings or a protobuf message."""
        return cls(**{each.name: getattr(source, each.name) for each in fields(cls)})


UNBOUNDED: Final = Limits(
    message_bytes_max=2**31 - 1,
    slots_max=2**31 - 1,
    state_bytes_max=2**31 - 1,
    exchange_state_bytes_max=2**62,
    exchanges_max=2**31 - 1,
    idle_s_max=float(2**31),
    age_s_max=float(2**31),
)
"""The bounds of an exchange within one process."""


@dataclass(frozen=True)
class OpenedCall:
    """Description of one call by the server.

    Args:
        fingerprint: Digest of everything that the format of its states depends on.
        can_retract: Whether it retracts rows.
        can_merge: Whether it merges states.
        is_invertible: Whether a row may be retracted before it is accumulated.
        input_types: The types that its arguments are cast to.
        can_migrate: Whether it accepts states of its other versions.
        is_ordered: Whether its rows are folded in the order of the call.
        views: The views of its state.
        mode: How it was folded when the exchange was opened; it may have changed since. None: not known.
        lift: How an engine may aggregate the rows without the function, or why it cannot, as a JSON document
            (`foldflight.lift.lift_text`); empty if the server does not tell, as in an open exchange.
        code_digest: Digest of the function's code; empty if the server does not tell.
        value_varies: Whether the values of one state may differ, because the function is not deterministic.
        rows_at_once: For an async function, the rows that a process evaluates at once; 0 for others.
    """

    fingerprint: str
    can_retract: bool
    can_merge: bool
    is_invertible: bool
    input_types: tuple[pa.DataType, ...]
    can_migrate: bool = False
    is_ordered: bool = False
    views: tuple[ViewSpec, ...] = ()
    mode: Mode | None = None
    lift: str = ""
    code_digest: str = ""
    value_varies: bool = False
    rows_at_once: int = 0


@dataclass(frozen=True)
class Opened:
    """The first frame of the server.

    Args:
        server_id: Identifier of the server.
        protocol_version: The protocol version of the server.
        calls: A description of each call or step.
        limits: The bounds of the server.
        schema: Schema of the server's batches: `slot`, then `state_i` and `output_i` of each call i. For steps: `row`
            if one is a table function, `output_i` of each output i, and `error` if errors are isolated.
    """

    server_id: str
    protocol_version: int
    calls: tuple[OpenedCall, ...]
    limits: Limits
    schema: pa.Schema

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprint of each call."""
        return tuple(call.fingerprint for call in self.calls)

    @property
    def can_retract(self) -> tuple[bool, ...]:
        """Whether each call retracts rows."""
        return tuple(call.can_retract for call in self.calls)

    @property
    def can_merge(self) -> tuple[bool, ...]:
        """Whether each call merges states."""
        return tuple(call.can_merge for call in self.calls)

    @property
    def modes(self) -> tuple[Mode | None, ...]:
        """How each call was folded when the exchange was opened; None where it is not known."""
        return tuple(call.mode for call in self.calls)


@dataclass(frozen=True)
class InitialOutputs:
    """The outputs of the slots of one States frame.

    Args:
        batch: n rows in `Opened.schema`, with NULL states.
    """

    batch: pa.RecordBatch


@dataclass(frozen=True)
class Wanted:
    """Entries of views that the server needs before it can go on.

    Args:
        batch: n rows in `Opened.schema`: views with keys and without values. One with `complete` asks for all entries
            after its key.
    """

    batch: pa.RecordBatch


@dataclass(frozen=True)
class Folded:
    """A chunk has been folded, in an exchange with `Open.keeps_views`."""


@dataclass(frozen=True)
class Results:
    """Dirty slots of an epoch.

    Args:
        epoch: The epoch.
        batch: n rows in `Opened.schema`, slots ascending over all batches of the epoch.
        last: Whether the epoch has no further batch.
        reopen: Whether the engine should end this exchange now and open another.
        modes: How each call is folded now; None where that is not known. Empty: as the engine was last told.
    """

    epoch: int
    batch: pa.RecordBatch
    last: bool = True
    reopen: bool = False
    modes: tuple[Mode | None, ...] = ()


@dataclass(frozen=True)
class RowOutputs:
    """The outputs after each row of one chunk.

    Args:
        batch: n rows in `Opened.schema`, with NULL states. Row i has the outputs after row i of the chunk.
    """

    batch: pa.RecordBatch


@dataclass(frozen=True)
class Mapped:
    """The outputs of one chunk in an exchange of steps.

    Args:
        batch: n rows in `Opened.schema`. Without a table function, one for each row of the chunk over all batches of
            the answer; with one, `row` is ascending over all batches.
        last: Whether the answer has no further batch.
        reopen: Whether the engine should end this exchange now and open another.
    """

    batch: pa.RecordBatch
    last: bool = True
    reopen: bool = False


@dataclass(frozen=True)
class SavedStates:
    """The states that a checkpoint requested.

    Args:
        batch: n rows in `Opened.schema`, with NULL outputs, slots ascending over all batches of the checkpoint.
        last: Whether the checkpoint has no further batch.
        problem: Why there are no states; empty if there are. The exchange continues in both cases.
        reopen: Whether the engine should end this exchange now and open another.
    """

    batch: pa.RecordBatch
    last: bool = True
    problem: str = ""
    reopen: bool = False


@dataclass(frozen=True)
class Log:
    """The log records of functions since the last barrier, checkpoint or answer to a chunk.

    They precede the last part of the next of these answers.

    Args:
        records: The records, oldest first.
    """

    records: tuple[LogRecord, ...]


EngineFrame = Open | States | Entries | Chunk | Barrier | Forget | Checkpoint
ServerFrame = Opened | InitialOutputs | Results | RowOutputs | Mapped | SavedStates | Wanted | Folded | Log
Frame = EngineFrame | ServerFrame


@dataclass(frozen=True)
class ParameterInfo:
    """Description of one direct argument that can be sent over the wire.

    Args:
        name: Its name.
        required: Whether a call must give it.
        default: The `repr` of its default; empty if it is required.
        annotation: Its annotation as text.
    """

    name: str
    required: bool
    default: str = ""
    annotation: str = ""


@dataclass(frozen=True)
class FunctionInfo:
    """Description of a function that can be sent over the wire.

    Args:
        name: Its name.
        version: The author's version.
        signature: Its signature as text.
        doc: Its documentation.
        retract: Whether it retracts rows.
        merge: Whether it merges states.
        invertible: Whether a row may be retracted before it is accumulated.
        deterministic: Whether the same rows always give the same result.
        codec: `typed`, `custom` or `pickle`.
        codec_reason: Why this codec is used.
        parameters: Its direct arguments.
        input_names: Names of its arguments.
        input_types: SQL names of their types; None if they depend on the arguments.
        result_type: SQL name of the result's type; None if it depends on the arguments.
        folding: How it is folded; None if this was not determined.
        inputs_min: The least number of arguments that a call may give.
        kind: What it does with rows. The fields from `retract` to `invertible`, and the codec, concern aggregates.
        vectorised: What the columns of a vectorised scalar function are: `arrow`, `numpy` or `pandas`; otherwise empty.
        zoned_types: `input_types` for columns with a time zone, if it takes timestamps of both kinds; otherwise None.
        zoned_result: `result_type` for `zoned_types`.
        lift: As `OpenedCall.lift`, for the types of `input_types` and the defaults of direct arguments; empty if it is
            not known without a call.
        code_digest: Digest of its code; empty if the server does not tell.
    """

    name: str
    version: str
    signature: str
    doc: str
    retract: bool
    merge: bool
    invertible: bool
    deterministic: bool
    codec: str
    codec_reason: str
    parameters: tuple[ParameterInfo, ...] = ()
    input_names: tuple[str, ...] = ()
    input_types: tuple[str, ...] | None = None
    result_type: str | None = None
    folding: Folding | None = None
    inputs_min: int = 0
    kind: FunctionKind = FunctionKind.AGGREGATE
    vectorised: str = ""
    zoned_types: tuple[str, ...] | None = None
    zoned_result: str | None = None
    lift: str = ""
    code_digest: str = ""

    @property
    def folded(self) -> str:
        """How it is folded, as text: the mode, and `: ` and the reason if it is interpreted; empty if unknown."""
        return "" if self.folding is None else str(self.folding)

    @classmethod
    def of(
        cls, function: AnyFunction, *, folding: Folding | None = None, lift: str = "", code_digest: str = ""
    ) -> FunctionInfo:
        """Return the description of a function. The caller determines how it is folded, and how it is lifted."""
        can = function.capabilities if isinstance(function, Function) else None
        inputs, result = function.input_types, function.result_type
        with_zone = function.zoned
        return cls(
            name=function.name,
            version=function.version,
            signature=function.signature,
            doc=function.doc,
            retract=can is not None and can.retract,
            merge=can is not None and can.merge,
            invertible=can is not None and can.invertible,
            deterministic=function.is_deterministic,
            codec="" if can is None else can.codec,
            codec_reason="" if can is None else can.codec_reason,
            parameters=tuple(
                ParameterInfo(each.name, each.required, "" if each.required else repr(each.default), each.annotation)
                for each in function.parameters
            ),
            input_names=function.input_names,
            input_types=_names(inputs),
            result_type=None if result is None else sql_name(result),
            folding=folding,
            inputs_min=function.inputs_min,
            kind=function.kind,
            vectorised="" if isinstance(function, Function) else function.vectorised or "",
            zoned_types=_names(None if with_zone is None else with_zone.input_types),
            zoned_result=None
            if with_zone is None or with_zone.result_type is None
            else sql_name(with_zone.result_type),
            lift=lift,
            code_digest=code_digest,
        )

    def for_types(self, argument_types: Sequence[pa.DataType]) -> FunctionInfo:
        """Return the description for arguments of these types: timestamps without a zone, or with one."""
        if self.input_types is None or self.zoned_types is None:
            return self
        if not needs_zone(
            argument_types, list(map(parse_type, self.input_types)), list(map(parse_type, self.zoned_types))
        ):
            return self
        return replace(self, input_types=self.zoned_types, result_type=self.zoned_result, zoned_types=None)


def _names(types: Sequence[pa.DataType] | None) -> tuple[str, ...] | None:
    return None if types is None else tuple(map(sql_name, types))


def sliced_to(batch: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    """Split a batch into batches of about `bytes_max` bytes or less, with at least one row each.

    An empty batch is returned as it is.
    """
    if batch.num_rows <= 1 or batch.nbytes <= bytes_max:
        return [batch]
    # Rows differ in size, so halve each part until it fits.
    half = batch.num_rows // 2
    return [*sliced_to(batch.slice(0, half), bytes_max), *sliced_to(batch.slice(half), bytes_max)]


def columns_text(schema: pa.Schema) -> str:
    """Return the columns of a schema as text for error messages: names, types and nullability."""
    return ", ".join(f"{each.name} {each.type}{'' if each.nullable else ' not null'}" for each in schema) or "none"


Slots = npt.NDArray[np.int32]
NO_SLOTS: Final[Slots] = np.zeros(0, np.int32)
ONE_SLOT: Final[Slots] = np.zeros(1, np.int32)
"""The slots of a chunk without a column `slot`: all rows belong to slot 0."""


def check_chunk(batch: pa.RecordBatch, open_request: Open) -> None:
    """Raise RejectedError SCHEMA_MISMATCH if the schema of a chunk differs from `Open.columns`."""
    if batch.schema != open_request.columns:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the chunk has {columns_text(batch.schema)}, and Open announced {columns_text(open_request.columns)}",
        )


def check_slots(slots: pa.Array, slots_max: int) -> Slots:
    """Check the type and the range of slots, and return them.

    Raises:
        RejectedError: SCHEMA_MISMATCH if they are not int32 without NULLs; LIMIT if one is out of bounds.
    """
    if slots.type != pa.int32() or slots.null_count:
        slots_text = f"{slots.type}" + (f" with {slots.null_count} NULLs" if slots.null_count else "")
        raise RejectedError("SCHEMA_MISMATCH", f"slots are int32 without NULLs, and these are {slots_text}")
    values: Slots = slots.to_numpy(zero_copy_only=False)
    # As an unsigned number, a negative slot is larger than every valid one, so one comparison is enough.
    if len(values) and int(np.maximum.reduce(values.view(np.uint32))) >= slots_max:
        wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
        raise RejectedError(
            "LIMIT",
            f"slot {wrong} is out of bounds: slots are 0 to slots_max - 1 = {slots_max - 1}",
            limit="slots_max",
        )
    return values


def check_states(batch: pa.RecordBatch, slots_max: int) -> Slots:
    """Check the slots of a batch of states, and return them. Raises RejectedError SCHEMA_MISMATCH, LIMIT."""
    columns = batch.schema.names.count("slot")
    if columns != 1:
        raise RejectedError("SCHEMA_MISMATCH", f"States must have one column `slot`, and this batch has {columns}")
    return check_slots(batch.column("slot"), slots_max)


class SlotSet:
    """A set of slots, stored as one boolean for each slot up to the highest that was added."""

    def __init__(self) -> None:
        self._has = np.zeros(0, np.bool_)
        self._full = 0  # all slots below this one are in the set

    def __bool__(self) -> bool:
        """Return whether the set has any slot."""
        return self._full > 0 or bool(self._has.any())

    def add(self, slots: Slots, slot_count: int) -> None:
        """Add n slots, the highest of which is `slot_count` - 1."""
        if slot_count <= self._full:
            return
        if slot_count > len(self._has):
            more = np.zeros(max(slot_count, 2 * len(self._has)) - len(self._has), np.bool_)
            self._has = np.concatenate([self._has, more])
        self._has[slots.astype(np.intp)] = True  # several times as fast as indexing with int32
        if slot_count <= len(slots) and self._has[:slot_count].all():
            self._full = slot_count

    def discard(self, slots: Slots) -> None:
        """Remove n slots."""
        self._has[slots[slots < len(self._has)]] = False
        self._full = 0

    def clear(self) -> None:
        """Remove all slots."""
        self._has, self._full = np.zeros(0, np.bool_), 0

    def to_numpy(self) -> Slots:
        """Return the slots of the set, ascending."""
        return self._has.nonzero()[0].astype(np.int32)
