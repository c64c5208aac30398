"""Scalar and table functions over blocks of rows: nested uses become the steps of one exchange, which a task drives.

uses > Steps (columns by name) > ScalarQuery.of (described, pinned) > ScalarQuery.answers (blocks in, outputs out)
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from foldflight.client.client_logs import log_records
from foldflight.client.embedded_transport import EmbeddedTransport
from foldflight.client.exchange import OpenExchange, Transport
from foldflight.client.functions import Use, UseMember, uses_in
from foldflight.engine.query.blocks import AdaptiveSize, BlockBounds
from foldflight.engine.query.layout import ARROW, HostTypes
from foldflight.errors import RejectedError
from foldflight.exchange.frames import Open
from foldflight.functions import Step, StepArgument
from foldflight.functions.query.call import text_of_literals
from foldflight.tracing import TraceSettings, planning

# Exchanges of a task with servers. One block is sent while another one is evaluated. More would gain little, and
# each counts towards the limit of a server.
_REMOTE_EXCHANGES: Final = 2
# Exchanges of a task for async functions. The answer to a block waits for its slowest row; other exchanges go on.
_WAITING_EXCHANGES: Final = 4
_BLOCK_ROWS: Final = 1 << 16
# Rows of a block for a table function. Its answer is held in memory as a whole, and each row may become many, so the
# first block is small, and the sizes of the answers then determine the size of the next block.
_TABLE_BLOCK_ROWS: Final = 1 << 13
_TABLE_FIRST_ROWS: Final = 1 << 8
_TABLE_ANSWER_ROWS: Final = 1 << 18


class Steps:
    """Collects the steps of nested uses. A use that appears several times becomes one step.

    Args:
        column: Returns the name of the chunk's column for an argument that is not itself a call, given the function's
            name.
    """

    def __init__(self, column: Callable[[object, str], str]) -> None:
        self.steps: list[Step] = []
        self._column = column
        self._by_use: dict[int, int] = {}
        self._by_value: dict[tuple[object, ...], int] = {}
        self._uses: list[Use] = []  # references that keep the ids of uses from being assigned to other objects

    def add(self, use: Use, *, outer: bool = False) -> int:
        """Return the number of the step of a use. The steps of its arguments come before it."""
        known_step = self._by_use.get(id(use))
        if known_step is not None:
            return known_step
        step = Step(
            use.function.name,
            tuple(self._argument(each, use) for each in use.arguments),
            literals=use.literals,
            outer=outer,
        )
        # Equal calls of a deterministic function have equal results.
        key = (step.function, step.arguments, text_of_literals(step.literals), outer)
        index = self._by_value.get(key) if use.function.deterministic and not use.is_table else None
        if index is None:
            index = len(self.steps)
            self.steps.append(step)
            self._by_value[key] = index
        self._uses.append(use)
        self._by_use[id(use)] = index
        return index

    def _argument(self, argument: object, user: Use) -> StepArgument:
        if isinstance(argument, UseMember):
            return StepArgument(step=self.add(argument.use), member=argument.member)
        if not isinstance(argument, Use):
            return StepArgument(column=self._column(argument, user.function.name))
        return StepArgument(step=self.add(argument), member=_only_column(argument, user))


def _only_column(use: Use, user: Use) -> str | None:
    """Return the only column of a table function that is an argument; None for a scalar function."""
    if not use.is_table:
        return None
    result_type = use.function.result_type
    names = [] if result_type is None else _column_names(result_type)
    if len(names) == 1:
        return names[0]
    raise RejectedError(
        "SCHEMA_MISMATCH",
        f"{user.function.name} takes one value, and {use!r} has several columns; name one: {use!r}['column']",
        function=user.function.name,
    )


def _column_names(result_type: str) -> list[str]:
    from foldflight.functions import parse_type

    type_ = parse_type(result_type)
    return [field.name for field in type_] if pa.types.is_struct(type_) else []


def transport_of(uses: Mapping[str, Use]) -> Transport:
    """Return the transport of all functions in uses and their arguments. Raises RejectedError SIGNATURE."""
    transports: dict[int, tuple[str, Transport]] = {}
    for use in uses_in(uses.values()):
        transports.setdefault(id(use.transport), (use.function.name, use.transport))
    names = [name for name, _ in transports.values()]
    if len(transports) > 1:
        raise RejectedError(
            "SIGNATURE",
            f"{names[0]} and {names[1]} come from two connections; take all functions from one, which takes "
            'several modules or several servers: connect("embedded:a,b")',
        )
    return next(iter(transports.values()))[1]


@dataclass(frozen=True)
class ScalarQuery:
    """Expressions of scalar and table functions, resolved and checked.

    Args:
        transport: The connection to the functions.
        open_request: The Open command of its exchanges. Each step has the fingerprint of its function.
        outputs: The names of the outputs, with the types that carry them in the host. The outputs of a table function
            are its columns.
        is_table: Whether there is a table function, so that answers have the column `row`.
        bounds: The limits of a block.
        exchanges: The number of exchanges that take blocks in turn.
    """

    transport: Transport
    open_request: Open
    outputs: pa.Schema
    is_table: bool
    bounds: BlockBounds
    exchanges: int = 1

    @classmethod
    def of(
        cls,
        transport: Transport,
        steps: Steps,
        outputs: Mapping[str, int],
        columns: pa.Schema,
        *,
        isolates: bool = False,
        types: HostTypes = ARROW,
    ) -> ScalarQuery:
        """Describe expressions through the transport, and check it.

        Args:
            transport: The connection to the functions.
            steps: The steps.
            outputs: The number of the step of each output, by name. The result of a table function is one output, whose
                members become the columns.
            columns: The columns of a chunk.
            isolates: Whether errors of rows are isolated.
            types: The storage types of the host.

        Raises:
            RejectedError: UNKNOWN_FUNCTION, SIGNATURE, SCHEMA_MISMATCH.
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        with planning(transport.otlp_endpoint, "map", [step.function for step in steps.steps]) as context:
            open_request = Open(
                calls=(),
                columns=columns,
                steps=tuple(steps.steps),
                outputs=tuple(outputs.values()),
                isolate_errors=isolates,
                trace_context=context,
            )
            open_reply = transport.describe(open_request)
        is_table = open_reply.schema.names[0] == "row"
        result_types = [open_reply.schema.field(f"output_{index}").type for index in range(len(outputs))]
        names = list(outputs)
        if is_table:
            (struct,) = result_types
            names, result_types = [field.name for field in struct], [field.type for field in struct]
        rows_max = _TABLE_BLOCK_ROWS if is_table else _BLOCK_ROWS
        exchanges = 1 if isinstance(transport, EmbeddedTransport) else _REMOTE_EXCHANGES
        if at_once := [call.rows_at_once for call in open_reply.calls if call.rows_at_once]:
            rows_max, exchanges = min(rows_max, *at_once), _WAITING_EXCHANGES
        return cls(
            transport=transport,
            open_request=open_request.pin(open_reply.fingerprints),
            outputs=pa.schema(list(zip(names, types.results(names, result_types), strict=True))),
            is_table=is_table,
            bounds=BlockBounds(rows_max=rows_max),
            exchanges=exchanges,
        )

    @property
    def trace(self) -> TraceSettings | None:
        """The trace settings of its tasks; None without a collector."""
        endpoint = self.transport.otlp_endpoint
        return None if endpoint is None else TraceSettings(endpoint, self.open_request.trace_context)

    def answers(
        self, blocks: Iterable[pa.RecordBatch], chunk_of: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Table]]:
        """Yield each block with its answer, in order.

        On servers, and for async functions, several exchanges take blocks in turn, so that one block travels or waits
        while another one is evaluated. Each exchange is read before it is written again, so that no side waits for the
        other.

        Args:
            blocks: Rows.
            chunk_of: Returns the chunk of a block, in the schema of the chunks. Default: the block is the chunk.
        """
        with contextlib.ExitStack() as stack:
            idle: list[OpenExchange] = []
            pending_chunks: deque[tuple[OpenExchange, pa.RecordBatch]] = deque()
            opened_count = 0
            size = None
            if self.is_table:  # so that the next answer has at most about as many rows as a block
                size = AdaptiveSize(self.bounds.rows_max, _TABLE_ANSWER_ROWS, first=_TABLE_FIRST_ROWS, growth=8)
            for block in blocks if size is None else size.pieces(blocks):
                if opened_count < self.exchanges:
                    idle.append(stack.enter_context(self.transport.open(self.open_request)))
                    opened_count += 1
                elif not idle:
                    yield self._take(*pending_chunks[0], size)
                    idle.append(pending_chunks.popleft()[0])
                exchange = idle.pop()
                exchange.chunk(block if chunk_of is None else chunk_of(block))
                pending_chunks.append((exchange, block))
            for exchange, block in pending_chunks:
                yield self._take(exchange, block, size)

    @staticmethod
    def _take(
        exchange: OpenExchange, block: pa.RecordBatch, size: AdaptiveSize | None
    ) -> tuple[pa.RecordBatch, pa.Table]:
        answer = exchange.step_outputs()
        log_records(exchange.take_logs())
        if size is not None:
            size.record(block.num_rows, answer.num_rows)
        return block, answer
