"""Functions over lists of rows: a scalar Arrow UDF that can stand wherever SQL has expressions.

`f(a, b)` becomes `udf(collect_list(named_struct('0', a, '1', b)))`. Spark collects the rows of each group, and the UDF
folds all lists of an Arrow batch in one epoch of one exchange.

The UDF is a plain one. Spark evaluates all plain UDFs of a projection in one Python process and one trip for each
batch; UDFs over iterators would need a process and a trip for each call.
"""

from __future__ import annotations

import dataclasses
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from foldflight.client.exchange import OpenExchange, Transport
from foldflight.engine.query.blocks import convert, without_nullability
from foldflight.engine.query.layout import SLOT
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import Open, Returns
from foldflight.functions import Call
from foldflight.functions.types.arrow import is_nested
from foldflight.spark.storage_types import result_types
from foldflight.spark.versions.types import spark_type
from foldflight.spark.versions.udfs import arrow_udf
from foldflight.spark.worker import attempt, freeze_garbage_collector

_ROWS_MAX: Final = 1 << 18
_NO_STATES: Final = Returns(states=False)


@dataclass(frozen=True)
class ListFold:
    """A fold of lists, one group for each list.

    Args:
        transport: The connection to the function.
        call: The call. Its arguments are the fields of the lists' structs.
        output: The type of its results.
        result: Their storage type in Spark.
        rows: The type of the rows in a list.
        calls_out: Whether its value waits for something outside.
    """

    transport: Transport
    call: Call
    output: pa.DataType
    result: pa.DataType
    rows: pa.DataType
    calls_out: bool

    @classmethod
    def of(cls, transport: Transport, call: Call, types: Sequence[pa.DataType]) -> ListFold:
        """Describe a call through its transport.

        Args:
            transport: The connection to the function.
            call: The call.
            types: The types of its columns: the arguments, then the keys of its order that are no arguments.

        Raises:
            RejectedError: UNKNOWN_FUNCTION, SIGNATURE or SCHEMA_MISMATCH.
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        columns = pa.schema(list(zip(dict.fromkeys(call.columns), types, strict=True)))
        open_reply = transport.describe(Open((call,), _with_slot(columns), returns=_NO_STATES))
        output = open_reply.schema.field("output_0").type
        (result,) = result_types([call.function], [output])
        names = [str(index) for index in range(len(columns))]
        rows = pa.struct(list(zip(names, columns.types, strict=True))) if names else pa.bool_()
        calls_out = any(each.rows_at_once for each in open_reply.calls)
        return cls(transport, call, output, result, rows, calls_out)

    def over_lists(self, type_: st.DataType) -> Any:
        """Return the UDF over lists, whose results have this type in Spark."""
        step = uuid.uuid4().hex
        epochs = _HeldEpochs(self)

        def fold_lists(lists: pa.Array) -> pa.Array:
            with attempt(step):
                lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
                results = epochs.fold(lengths, self._columns(lists))
            freeze_garbage_collector()
            return results

        return _udf(fold_lists, self, type_, [pa.list_(self.rows)])

    def over_groups(self) -> Any:
        """Return the function as an aggregate of Spark: for plain SQL, with the restrictions that Spark has for it."""
        step = uuid.uuid4().hex
        epochs = _HeldEpochs(self)

        def fold_group(*columns: pa.Array, **columns_by_name: pa.Array) -> object:
            with attempt(step):
                columns = self._in_order(columns, columns_by_name)
                if not columns:
                    raise RejectedError(
                        "SIGNATURE",
                        f"in plain SQL {self.call.function} needs an argument, which has the rows; give it one",
                        function=self.call.function,
                    )
                plain = [_plain(each) for each in columns]
                (result,) = epochs.fold(np.array([len(plain[0])]), plain)
            return result.as_py()

        return _udf(fold_group, self, spark_type(self.result))

    def _in_order(self, columns: tuple[pa.Array, ...], columns_by_name: Mapping[str, pa.Array]) -> tuple[pa.Array, ...]:
        """Return the arguments of plain SQL in the function's order. Raises RejectedError SIGNATURE."""
        names = self.call.columns[len(columns) : len(columns) + len(columns_by_name)]
        if sorted(names) != sorted(columns_by_name):
            raise RejectedError(
                "SIGNATURE",
                f"{self.call.function} has the arguments {', '.join(self.call.columns)}, and is given "
                f"{len(columns)} by position and {', '.join(columns_by_name)} by name; "
                "give each once, and leave out only the last",
                function=self.call.function,
            )
        return (*columns, *(columns_by_name[name] for name in names))

    def _columns(self, lists: pa.Array) -> list[pa.Array]:
        """Return the rows of all lists as one array for each column of the call."""
        rows = lists.flatten()
        return [_plain(rows.field(index)) for index, _ in enumerate(dict.fromkeys(self.call.columns))]


class _Epochs:
    """An exchange in which each batch of lists is an epoch."""

    def __init__(self, fold: ListFold, columns: Sequence[pa.Array]) -> None:
        self._fold = fold
        call, names = fold.call, list(dict.fromkeys(fold.call.columns))
        if len(columns) != len(names):  # plain SQL checks no number; without the last arguments, they have defaults
            names = [*names, *(f"argument {index + 1}" for index in range(len(names), len(columns)))][: len(columns)]
            call = dataclasses.replace(call, arguments=tuple(names))
        types = [column.type for column in columns]
        self._schema = _with_slot(pa.schema(list(zip(names, types, strict=True))))
        self._exchange: OpenExchange = fold.transport.open(Open((call,), self._schema, returns=_NO_STATES))
        self._slots_max = self._exchange.open_reply.limits.slots_max
        self._epoch = 0

    def close(self) -> None:
        self._exchange.close()

    def fold(self, lengths: Any, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the results of n lists, given their lengths and the columns of all their rows."""
        ends = np.concatenate([[0], np.cumsum(lengths)])
        results = []
        for first in range(0, len(lengths), self._slots_max):
            some = lengths[first : first + self._slots_max]
            begin, end = ends[first], ends[first + len(some)]
            results.append(self._epoch_of(some, [column.slice(begin, end - begin) for column in columns]))
        return pa.concat_arrays(results) if results else pa.nulls(0, self._fold.result)

    def _epoch_of(self, lengths: Any, columns: Sequence[pa.Array]) -> pa.Array:
        exchange = self._exchange
        self._epoch += 1
        empty = np.flatnonzero(lengths == 0).astype(np.int32)
        if len(empty):  # a group without rows has the value of a new accumulator
            state = exchange.open_reply.schema.field("state_0")
            nothing = [pa.array(empty), pa.nulls(len(empty), state.type)]
            exchange.states(pa.RecordBatch.from_arrays(nothing, schema=pa.schema([(SLOT, pa.int32()), state])))
        slots = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        for start in range(0, len(slots), _ROWS_MAX):
            rows = [pa.array(slots[start : start + _ROWS_MAX])]
            rows += [column.slice(start, _ROWS_MAX) for column in columns]
            exchange.chunk(pa.RecordBatch.from_arrays(rows, schema=self._schema))
        exchange.barrier(self._epoch)
        results = exchange.results(self._epoch)
        exchange.forget(pa.array(np.arange(len(lengths), dtype=np.int32)))
        return convert(results.column("output_0").combine_chunks(), self._fold.result)


class _HeldEpochs:
    """An exchange that lives as long as the function that a worker holds: for one task, which calls it many times.

    Tasks of Sail are threads of one process and share the function, so they take turns.
    """

    def __init__(self, fold: ListFold) -> None:
        self._fold = fold
        self._turn = threading.Lock()
        self._epochs: _Epochs | None = None

    def __reduce__(self) -> tuple[type[_HeldEpochs], tuple[ListFold]]:
        return type(self), (self._fold,)

    def fold(self, lengths: Any, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the results of n lists, given their lengths and the columns of all their rows."""
        with self._turn:
            if self._epochs is None:
                self._epochs = _Epochs(self._fold, columns)
                weakref.finalize(self, self._epochs.close)
            try:
                return self._epochs.fold(lengths, columns)
            except FoldflightError as error:
                error.slot = None  # a position in a batch of Spark; the keys of the list are not known here
                raise


def _udf(
    function: Callable[..., Any], fold: ListFold, type_: st.DataType, inputs: Sequence[pa.DataType] | None = None
) -> Any:
    """Return a function as a UDF, whose kind Spark reads from its annotations."""
    function.__name__ = fold.call.function  # Spark shows it in plans and in its UI
    return arrow_udf(function, type_, inputs)


def _with_slot(columns: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(SLOT, pa.int32()), *columns])


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(without_nullability(column.type)) if is_nested(column.type) else column
