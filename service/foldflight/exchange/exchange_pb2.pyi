from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Open(_message.Message):
    __slots__ = ("protocol_version", "calls", "columns", "return_states", "return_outputs", "initial_outputs", "row_outputs", "job_parameters", "trace_context", "isolate_errors", "bundles", "steps", "outputs", "emits", "keeps_views", "call_scope")
    class JobParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TraceContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    RETURN_STATES_FIELD_NUMBER: _ClassVar[int]
    RETURN_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ROW_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    JOB_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ISOLATE_ERRORS_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    EMITS_FIELD_NUMBER: _ClassVar[int]
    KEEPS_VIEWS_FIELD_NUMBER: _ClassVar[int]
    CALL_SCOPE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    columns: bytes
    return_states: bool
    return_outputs: bool
    initial_outputs: bool
    row_outputs: bool
    job_parameters: _containers.ScalarMap[str, str]
    trace_context: _containers.ScalarMap[str, str]
    isolate_errors: bool
    bundles: _containers.RepeatedScalarFieldContainer[bytes]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    outputs: _containers.RepeatedScalarFieldContainer[int]
    emits: bool
    keeps_views: bool
    call_scope: str
    def __init__(self, protocol_version: _Optional[int] = ..., calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ..., columns: _Optional[bytes] = ..., return_states: _Optional[bool] = ..., return_outputs: _Optional[bool] = ..., initial_outputs: _Optional[bool] = ..., row_outputs: _Optional[bool] = ..., job_parameters: _Optional[_Mapping[str, str]] = ..., trace_context: _Optional[_Mapping[str, str]] = ..., isolate_errors: _Optional[bool] = ..., bundles: _Optional[_Iterable[bytes]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., outputs: _Optional[_Iterable[int]] = ..., emits: _Optional[bool] = ..., keeps_views: _Optional[bool] = ..., call_scope: _Optional[str] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("function", "arguments", "literals", "fingerprint", "outer")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    LITERALS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    OUTER_FIELD_NUMBER: _ClassVar[int]
    function: str
    arguments: _containers.RepeatedCompositeFieldContainer[StepArgument]
    literals: bytes
    fingerprint: str
    outer: bool
    def __init__(self, function: _Optional[str] = ..., arguments: _Optional[_Iterable[_Union[StepArgument, _Mapping]]] = ..., literals: _Optional[bytes] = ..., fingerprint: _Optional[str] = ..., outer: _Optional[bool] = ...) -> None: ...

class StepArgument(_message.Message):
    __slots__ = ("column", "step", "member")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    column: str
    step: int
    member: str
    def __init__(self, column: _Optional[str] = ..., step: _Optional[int] = ..., member: _Optional[str] = ...) -> None: ...

class Bundle(_message.Message):
    __slots__ = ("digest", "signature", "content")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    signature: bytes
    content: bytes
    def __init__(self, digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., content: _Optional[bytes] = ...) -> None: ...

class BundleContent(_message.Message):
    __slots__ = ("functions", "made_with", "code")
    class MadeWithEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    MADE_WITH_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    functions: _containers.RepeatedScalarFieldContainer[str]
    made_with: _containers.ScalarMap[str, str]
    code: bytes
    def __init__(self, functions: _Optional[_Iterable[str]] = ..., made_with: _Optional[_Mapping[str, str]] = ..., code: _Optional[bytes] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("function", "arguments", "filter", "distinct", "literals", "fingerprint", "materialize", "order")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_FIELD_NUMBER: _ClassVar[int]
    LITERALS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MATERIALIZE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    function: str
    arguments: _containers.RepeatedScalarFieldContainer[str]
    filter: str
    distinct: bool
    literals: bytes
    fingerprint: str
    materialize: bool
    order: _containers.RepeatedCompositeFieldContainer[Order]
    def __init__(self, function: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ..., filter: _Optional[str] = ..., distinct: _Optional[bool] = ..., literals: _Optional[bytes] = ..., fingerprint: _Optional[str] = ..., materialize: _Optional[bool] = ..., order: _Optional[_Iterable[_Union[Order, _Mapping]]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("column", "descending", "nulls_first")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    NULLS_FIRST_FIELD_NUMBER: _ClassVar[int]
    column: str
    descending: bool
    nulls_first: bool
    def __init__(self, column: _Optional[str] = ..., descending: _Optional[bool] = ..., nulls_first: _Optional[bool] = ...) -> None: ...

class EngineFrame(_message.Message):
    __slots__ = ("states", "chunk", "barrier", "forget", "checkpoint", "entries")
    STATES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    states: States
    chunk: Chunk
    barrier: Barrier
    forget: Forget
    checkpoint: Checkpoint
    entries: Entries
    def __init__(self, states: _Optional[_Union[States, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., barrier: _Optional[_Union[Barrier, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., entries: _Optional[_Union[Entries, _Mapping]] = ...) -> None: ...

class States(_message.Message):
    __slots__ = ("batch", "unanswered")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    batch: bytes
    unanswered: bool
    def __init__(self, batch: _Optional[bytes] = ..., unanswered: _Optional[bool] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Barrier(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slots: _Optional[_Iterable[int]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("if_reopen",)
    IF_REOPEN_FIELD_NUMBER: _ClassVar[int]
    if_reopen: bool
    def __init__(self, if_reopen: _Optional[bool] = ...) -> None: ...

class Entries(_message.Message):
    __slots__ = ("batch", "last")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    batch: bytes
    last: bool
    def __init__(self, batch: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("opened", "initial_outputs", "results", "row_outputs", "log", "saved_states", "mapped", "wanted", "folded")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    INITIAL_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ROW_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    SAVED_STATES_FIELD_NUMBER: _ClassVar[int]
    MAPPED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    FOLDED_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    initial_outputs: InitialOutputs
    results: Results
    row_outputs: RowOutputs
    log: Log
    saved_states: SavedStates
    mapped: Mapped
    wanted: Wanted
    folded: Folded
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., initial_outputs: _Optional[_Union[InitialOutputs, _Mapping]] = ..., results: _Optional[_Union[Results, _Mapping]] = ..., row_outputs: _Optional[_Union[RowOutputs, _Mapping]] = ..., log: _Optional[_Union[Log, _Mapping]] = ..., saved_states: _Optional[_Union[SavedStates, _Mapping]] = ..., mapped: _Optional[_Union[Mapped, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, _Mapping]] = ..., folded: _Optional[_Union[Folded, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("server_id", "protocol_version", "calls", "limits", "knows_if_reopen", "knows_emits", "knows_views")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    KNOWS_IF_REOPEN_FIELD_NUMBER: _ClassVar[int]
    KNOWS_EMITS_FIELD_NUMBER: _ClassVar[int]
    KNOWS_VIEWS_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    protocol_version: int
    calls: _containers.RepeatedCompositeFieldContainer[OpenedCall]
    limits: Limits
    knows_if_reopen: bool
    knows_emits: bool
    knows_views: bool
    def __init__(self, server_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., calls: _Optional[_Iterable[_Union[OpenedCall, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., knows_if_reopen: _Optional[bool] = ..., knows_emits: _Optional[bool] = ..., knows_views: _Optional[bool] = ...) -> None: ...

class OpenedCall(_message.Message):
    __slots__ = ("fingerprint", "can_retract", "can_merge", "is_invertible", "input_types", "can_migrate", "is_ordered", "views", "folded", "lift", "code_digest", "value_varies", "rows_at_once")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CAN_RETRACT_FIELD_NUMBER: _ClassVar[int]
    CAN_MERGE_FIELD_NUMBER: _ClassVar[int]
    IS_INVERTIBLE_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPES_FIELD_NUMBER: _ClassVar[int]
    CAN_MIGRATE_FIELD_NUMBER: _ClassVar[int]
    IS_ORDERED_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    FOLDED_FIELD_NUMBER: _ClassVar[int]
    LIFT_FIELD_NUMBER: _ClassVar[int]
    CODE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VALUE_VARIES_FIELD_NUMBER: _ClassVar[int]
    ROWS_AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    can_retract: bool
    can_merge: bool
    is_invertible: bool
    input_types: bytes
    can_migrate: bool
    is_ordered: bool
    views: _containers.RepeatedCompositeFieldContainer[View]
    folded: str
    lift: str
    code_digest: str
    value_varies: bool
    rows_at_once: int
    def __init__(self, fingerprint: _Optional[str] = ..., can_retract: _Optional[bool] = ..., can_merge: _Optional[bool] = ..., is_invertible: _Optional[bool] = ..., input_types: _Optional[bytes] = ..., can_migrate: _Optional[bool] = ..., is_ordered: _Optional[bool] = ..., views: _Optional[_Iterable[_Union[View, _Mapping]]] = ..., folded: _Optional[str] = ..., lift: _Optional[str] = ..., code_digest: _Optional[str] = ..., value_varies: _Optional[bool] = ..., rows_at_once: _Optional[int] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("name", "types", "is_list", "prefetch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    IS_LIST_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    types: bytes
    is_list: bool
    prefetch: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., types: _Optional[bytes] = ..., is_list: _Optional[bool] = ..., prefetch: _Optional[_Iterable[int]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("message_bytes_max", "slots_max", "state_bytes_max", "exchange_state_bytes_max", "exchanges_max", "idle_s_max", "age_s_max")
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SLOTS_MAX_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_STATE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_MAX_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_MAX_FIELD_NUMBER: _ClassVar[int]
    AGE_S_MAX_FIELD_NUMBER: _ClassVar[int]
    message_bytes_max: int
    slots_max: int
    state_bytes_max: int
    exchange_state_bytes_max: int
    exchanges_max: int
    idle_s_max: float
    age_s_max: float
    def __init__(self, message_bytes_max: _Optional[int] = ..., slots_max: _Optional[int] = ..., state_bytes_max: _Optional[int] = ..., exchange_state_bytes_max: _Optional[int] = ..., exchanges_max: _Optional[int] = ..., idle_s_max: _Optional[float] = ..., age_s_max: _Optional[float] = ...) -> None: ...

class InitialOutputs(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Results(_message.Message):
    __slots__ = ("epoch", "last", "reopen", "folded")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REOPEN_FIELD_NUMBER: _ClassVar[int]
    FOLDED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    last: bool
    reopen: bool
    folded: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., last: _Optional[bool] = ..., reopen: _Optional[bool] = ..., folded: _Optional[_Iterable[str]] = ...) -> None: ...

class RowOutputs(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Mapped(_message.Message):
    __slots__ = ("last", "reopen")
    LAST_FIELD_NUMBER: _ClassVar[int]
    REOPEN_FIELD_NUMBER: _ClassVar[int]
    last: bool
    reopen: bool
    def __init__(self, last: _Optional[bool] = ..., reopen: _Optional[bool] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Folded(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SavedStates(_message.Message):
    __slots__ = ("last", "problem", "reopen")
    LAST_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REOPEN_FIELD_NUMBER: _ClassVar[int]
    last: bool
    problem: str
    reopen: bool
    def __init__(self, last: _Optional[bool] = ..., problem: _Optional[str] = ..., reopen: _Optional[bool] = ...) -> None: ...

class Log(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[LogRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[LogRecord, _Mapping]]] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ("level", "function", "message", "fields", "slot")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    level: str
    function: str
    message: str
    fields: _containers.ScalarMap[str, str]
    slot: int
    def __init__(self, level: _Optional[str] = ..., function: _Optional[str] = ..., message: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ..., slot: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("error_class", "code", "message", "function", "slot", "row", "trace", "story", "repeats", "recorded")
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    error_class: str
    code: str
    message: str
    function: str
    slot: int
    row: str
    trace: str
    story: _containers.RepeatedScalarFieldContainer[str]
    repeats: bool
    recorded: str
    def __init__(self, error_class: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., function: _Optional[str] = ..., slot: _Optional[int] = ..., row: _Optional[str] = ..., trace: _Optional[str] = ..., story: _Optional[_Iterable[str]] = ..., repeats: _Optional[bool] = ..., recorded: _Optional[str] = ...) -> None: ...

class FunctionInfo(_message.Message):
    __slots__ = ("name", "version", "signature", "doc", "retract", "merge", "invertible", "deterministic", "codec", "codec_reason", "parameters", "input_names", "input_types", "result_type", "folded", "inputs_min", "kind", "vectorised", "zoned_types", "zoned_result", "lift", "code_digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    RETRACT_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    INVERTIBLE_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CODEC_REASON_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    INPUT_NAMES_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPES_FIELD_NUMBER: _ClassVar[int]
    RESULT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FOLDED_FIELD_NUMBER: _ClassVar[int]
    INPUTS_MIN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VECTORISED_FIELD_NUMBER: _ClassVar[int]
    ZONED_TYPES_FIELD_NUMBER: _ClassVar[int]
    ZONED_RESULT_FIELD_NUMBER: _ClassVar[int]
    LIFT_FIELD_NUMBER: _ClassVar[int]
    CODE_DIGEST_FIELD_NUMBER: _ClassVar[int]
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
    parameters: _containers.RepeatedCompositeFieldContainer[Parameter]
    input_names: _containers.RepeatedScalarFieldContainer[str]
    input_types: Types
    result_type: str
    folded: str
    inputs_min: int
    kind: str
    vectorised: str
    zoned_types: Types
    zoned_result: str
    lift: str
    code_digest: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., signature: _Optional[str] = ..., doc: _Optional[str] = ..., retract: _Optional[bool] = ..., merge: _Optional[bool] = ..., invertible: _Optional[bool] = ..., deterministic: _Optional[bool] = ..., codec: _Optional[str] = ..., codec_reason: _Optional[str] = ..., parameters: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., input_names: _Optional[_Iterable[str]] = ..., input_types: _Optional[_Union[Types, _Mapping]] = ..., result_type: _Optional[str] = ..., folded: _Optional[str] = ..., inputs_min: _Optional[int] = ..., kind: _Optional[str] = ..., vectorised: _Optional[str] = ..., zoned_types: _Optional[_Union[Types, _Mapping]] = ..., zoned_result: _Optional[str] = ..., lift: _Optional[str] = ..., code_digest: _Optional[str] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("name", "required", "default", "annotation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    ANNOTATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    required: bool
    default: str
    annotation: str
    def __init__(self, name: _Optional[str] = ..., required: _Optional[bool] = ..., default: _Optional[str] = ..., annotation: _Optional[str] = ...) -> None: ...

class Types(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...
