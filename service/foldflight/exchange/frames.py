"""The frames of an exchange, as values.

How they become bytes is the business of `codec`; which may follow which, of `machine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import pyarrow as pa

from foldflight.fold.mode import Folding
from foldflight.functions.call import Call
from foldflight.functions.context import LogRecord
from foldflight.functions.spec import Function
from foldflight.functions.types import sql_name

__all__ = [
    "PROTOCOL_VERSION",
    "SLOT_BYTES",
    "Barrier",
    "Checkpoint",
    "Chunk",
    "EngineFrame",
    "Forget",
    "Frame",
    "FunctionInfo",
    "InitialOutputs",
    "Limits",
    "Log",
    "Open",
    "Opened",
    "OpenedCall",
    "ParameterInfo",
    "Results",
    "Returns",
    "RowOutputs",
    "SavedStates",
    "ServerFrame",
    "States",
    "columns_text",
]

PROTOCOL_VERSION = 1
# What a row of a chunk counts for at least: its slot, which the server makes where the chunk has none.
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
class Open:
    """Begin an exchange.

    Args:
        calls: The calls; call i has the columns `state_i` and `output_i` in the results.
        columns: Schema of the chunks: optionally `slot` int32 and `kind` int8, then argument and filter columns.
        returns: What Results carry.
        initial_outputs: Whether each States frame is answered with the outputs of its slots, unless it says otherwise.
        row_outputs: Whether each Chunk is answered with the outputs after each row.
        job_parameters: What functions read from their context.
        trace_context: W3C trace context of the caller, for logs.
        isolate_errors: Whether a function that raises fails its slot alone: results then have a column `error`.
        bundles: Functions that the engine brings along, each sealed (`exchange.bundles`).
        protocol_version: The version that the engine speaks.
    """

    calls: tuple[Call, ...]
    columns: pa.Schema
    returns: Returns = field(default_factory=Returns)
    initial_outputs: bool = False
    row_outputs: bool = False
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    trace_context: Mapping[str, str] = field(default_factory=dict)
    isolate_errors: bool = False
    bundles: tuple[bytes, ...] = field(default=(), repr=False)
    protocol_version: int = PROTOCOL_VERSION

    def asks(self, frame: Frame) -> bool:
        """Tell whether the server answers a frame of the engine in an exchange that was opened so."""
        match frame:
            case Barrier() | Checkpoint():
                return True
            case States():
                return self.initial_outputs and not frame.unanswered
            case Chunk():
                return self.row_outputs
            case _:
                return False


@dataclass(frozen=True)
class States:
    """Merge states into slots.

    Args:
        batch: n rows: `slot` int32 and `state_i` for each call; a NULL state is no state. With no rows at all it asks,
            where initial outputs were asked for, for the output of slot 0.
        unanswered: Whether no initial outputs are wanted for this frame, though Open asks for them.
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
        epoch: Its number: any for the first, then one more each time.
    """

    epoch: int


@dataclass(frozen=True)
class Forget:
    """Drop accumulators.

    Args:
        slots: Whose, int32.
    """

    slots: pa.Int32Array


@dataclass(frozen=True)
class Checkpoint:
    """Return, within an epoch, the states that changed since states were last returned.

    The engine then need not keep the chunks before it. What the next barrier returns stays the same.

    Args:
        if_reopen: Whether states are wanted only if the server asks to be left.
    """

    if_reopen: bool = False


@dataclass(frozen=True)
class Limits:
    """The bounds of a server.

    Args:
        message_bytes_max: Bytes of one message.
        slots_max: A slot is below this.
        state_bytes_max: Bytes of one state.
        exchange_state_bytes_max: Bytes of all states that one barrier returns.
        exchanges_max: Exchanges open at once.
        idle_s_max: Seconds without a frame after which an exchange is ended.
        age_s_max: Seconds after which an exchange is asked to reopen.
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
        """Return the bounds that settings, or a message of the protocol, hold under the same names."""
        return cls(**{each.name: getattr(source, each.name) for each in fields(cls)})


@dataclass(frozen=True)
class OpenedCall:
    """What the server says of one call.

    Args:
        fingerprint: What its states depend on.
        can_retract: Whether it takes rows back.
        can_merge: Whether it merges states.
        is_invertible: Whether a row may be taken back before it has come.
        input_types: The types that its arguments are cast to.
        can_migrate: Whether it takes states of its other versions.
    """

    fingerprint: str
    can_retract: bool
    can_merge: bool
    is_invertible: bool
    input_types: tuple[pa.DataType, ...]
    can_migrate: bool = False


@dataclass(frozen=True)
class Opened:
    """The first frame of the server.

    Args:
        server_id: Which server this is.
        protocol_version: The version it speaks.
        calls: What it says of each call.
        limits: Its bounds.
        schema: Schema of its batches: `slot`, then `state_i` and `output_i` of each call i.
        knows_if_reopen: Whether it knows `Checkpoint.if_reopen`.
    """

    server_id: str
    protocol_version: int
    calls: tuple[OpenedCall, ...]
    limits: Limits
    schema: pa.Schema
    knows_if_reopen: bool = False

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprint of each call."""
        return tuple(call.fingerprint for call in self.calls)

    @property
    def can_retract(self) -> tuple[bool, ...]:
        """Whether each call takes rows back."""
        return tuple(call.can_retract for call in self.calls)

    @property
    def can_merge(self) -> tuple[bool, ...]:
        """Whether each call merges states."""
        return tuple(call.can_merge for call in self.calls)


@dataclass(frozen=True)
class InitialOutputs:
    """The outputs of the slots of one States frame.

    Args:
        batch: n rows in `Opened.schema`, with NULL states.
    """

    batch: pa.RecordBatch


@dataclass(frozen=True)
class Results:
    """Dirty slots of an epoch.

    Args:
        epoch: The epoch.
        batch: n rows in `Opened.schema`, slots ascending over all batches of the epoch.
        last: Whether the epoch has no further batch.
        reopen: Whether the engine should end this exchange now and open another.
    """

    epoch: int
    batch: pa.RecordBatch
    last: bool = True
    reopen: bool = False


@dataclass(frozen=True)
class RowOutputs:
    """The outputs after each row of one chunk.

    Args:
        batch: n rows in `Opened.schema`, with NULL states; row i stands for row i of the chunk.
    """

    batch: pa.RecordBatch


@dataclass(frozen=True)
class SavedStates:
    """What a checkpoint asked for.

    Args:
        batch: n rows in `Opened.schema`, with NULL outputs, slots ascending over all batches of the checkpoint.
        last: Whether the checkpoint has no further batch.
        problem: Why there are no states; empty if there are. The exchange goes on either way.
        reopen: Whether the engine should end this exchange now and open another.
    """

    batch: pa.RecordBatch
    last: bool = True
    problem: str = ""
    reopen: bool = False


@dataclass(frozen=True)
class Log:
    """What functions logged since the last barrier or checkpoint.

    Args:
        records: The lines, oldest first.
    """

    records: tuple[LogRecord, ...]


EngineFrame = Open | States | Chunk | Barrier | Forget | Checkpoint
ServerFrame = Opened | InitialOutputs | Results | RowOutputs | SavedStates | Log
Frame = EngineFrame | ServerFrame


@dataclass(frozen=True)
class ParameterInfo:
    """One direct argument, as far as it can be told over a wire.

    Args:
        name: Its name.
        required: Whether a call must give it.
        default: Its default as Python writes it; empty if it is required.
        annotation: Its annotation as text.
    """

    name: str
    required: bool
    default: str = ""
    annotation: str = ""


@dataclass(frozen=True)
class FunctionInfo:
    """What a function is, as far as it can be told over a wire.

    Args:
        name: Its name.
        version: The author's version.
        signature: Its signature as text.
        doc: Its documentation.
        retract: Whether it takes rows back.
        merge: Whether it merges states.
        invertible: Whether a row may be taken back before it has come.
        deterministic: Whether the same rows always give the same result.
        codec: `typed`, `custom` or `pickle`.
        codec_reason: Why that codec.
        parameters: Its direct arguments.
        input_names: Names of its arguments.
        input_types: SQL names of their types; None if they depend on the arguments.
        result_type: SQL name of the result's type; None if it depends on the arguments.
        folding: How it is folded; None where nobody has looked.
        inputs_min: The least number of arguments that a call may give.
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

    @property
    def folded(self) -> str:
        """How it is folded, as text: a mode, and `: ` and the reason where it is interpreted; empty if unknown."""
        return "" if self.folding is None else str(self.folding)

    @classmethod
    def of(cls, function: Function, *, folding: Folding | None = None) -> FunctionInfo:
        """Return what there is to tell of a function, with what the caller knows of how it is folded."""
        can = function.capabilities
        inputs, result = function.input_types, function.result_type
        return cls(
            name=function.name,
            version=function.version,
            signature=function.signature,
            doc=function.doc,
            retract=can.retract,
            merge=can.merge,
            invertible=can.invertible,
            deterministic=can.deterministic,
            codec=can.codec,
            codec_reason=can.codec_reason,
            parameters=tuple(
                ParameterInfo(each.name, each.required, "" if each.required else repr(each.default), each.annotation)
                for each in function.parameters
            ),
            input_names=function.input_names,
            input_types=None if inputs is None else tuple(sql_name(each) for each in inputs),
            result_type=None if result is None else sql_name(result),
            folding=folding,
            inputs_min=function.inputs_min,
        )


def columns_text(schema: pa.Schema) -> str:
    """Return the columns of a schema as errors show them, with all that makes two schemas differ."""
    return ", ".join(f"{each.name} {each.type}{'' if each.nullable else ' not null'}" for each in schema) or "none"
