"""The columns of a query, in the forms in which Spark's tasks pass them to an exchange and to each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.query.blocks import convert
from foldflight.fold.failures import ERROR, ERROR_TYPE
from foldflight.functions import RowKind
from foldflight.functions.types.arrow import in_microseconds, is_nested, with_column
from foldflight.functions.types.views import ViewSpec

BUCKET, FOLDED, HASH, KIND, LIVE, REAL, SLOT = "bucket", "folded", "hash", "kind", "live", "real", "slot"
EMIT = "emit"
EMITTED = "emitted_"
"""What the names of columns with the last outputs of groups begin with."""

# Columns that a result may have in addition to keys and outputs.
DEAD_LETTER = "dead_letter"
ROW_KIND = "row_kind"

RETRACTING = tuple(int(kind) for kind in RowKind if kind.retracts)
"""The row kinds that retract a row, as numbers."""


_NOTHING = pa.schema([])


class HostTypes(NamedTuple):
    """The storage types of states and results in the host of an engine.

    Args:
        storage: Returns the host's type for states of a type.
        results: Returns the host's types for outputs of these names and types. Raises RejectedError SCHEMA_MISMATCH,
            naming an output whose type the host cannot represent.
    """

    storage: Callable[[pa.DataType], pa.DataType]
    results: Callable[[list[str], list[pa.DataType]], list[pa.DataType]]


ARROW = HostTypes(storage=lambda type_: type_, results=lambda _names, types: types)
"""A host that supports every Arrow type."""


def chunk_names(texts: Iterable[str], reserved_names: Collection[str] = (SLOT, KIND)) -> list[str]:
    """Return unique names for the columns of a chunk: the user's texts, with a number behind a name that is not free.

    Errors show these names. A column with a reserved name would be read as the column of the exchange: the user's
    `kind`, an int8, as the row kind.

    Args:
        texts: The user's texts; equal ones are different columns.
        reserved_names: Names that no column may have.
    """
    names: list[str] = []
    for text in texts:
        candidates = (text + suffix for suffix in chain([""], (f" ({number})" for number in count(2))))
        names.append(next(name for name in candidates if name not in reserved_names and name not in names))
    return names


@dataclass(frozen=True)
class QueryLayout:
    """The columns of a query between Spark and an exchange.

    Args:
        keys: The key columns under internal names, with their Arrow types; none for one group of all rows.
        names: The user's names of the keys.
        columns: The argument and filter columns under internal names.
        display_names: Their names in chunks, from the user's texts.
        has_kinds: Whether rows have a kind (column `kind`, int8).
        states: The state columns of the exchange, `state_0`..., as announced by the server, with fingerprints.
        carried: The same columns with their storage types in Spark.
        outputs: The output columns, with the user's names and their storage types in Spark.
        emitted: The columns `emitted_i` of a stream's state: for each call i whose values vary, the last output.
        isolates: Whether errors are isolated, so that results include dead letters.
    """

    keys: pa.Schema
    names: tuple[str, ...]
    columns: pa.Schema
    display_names: tuple[str, ...]
    has_kinds: bool
    states: pa.Schema = _NOTHING
    carried: pa.Schema = _NOTHING
    outputs: pa.Schema = _NOTHING
    emitted: pa.Schema = _NOTHING
    isolates: bool = False

    @property
    def rows(self) -> pa.Schema:
        """The schema of rows from Spark: keys, kind, arguments and filters; `real` if there are no other columns."""
        fields = [*self.keys, *([pa.field(KIND, pa.int8())] if self.has_kinds else []), *self.columns]
        return pa.schema(fields or [pa.field(REAL, pa.bool_())])

    @property
    def chunk(self) -> pa.Schema:
        """The chunks of the exchange."""
        kind = [pa.field(KIND, pa.int8())] if self.has_kinds else []
        columns = [field.with_name(name) for field, name in zip(self.columns, self.display_names, strict=True)]
        return pa.schema([pa.field(SLOT, pa.int32()), *kind, *columns])

    def chunk_of(self, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> pa.RecordBatch:
        """Return n rows as a chunk."""
        names = [*([KIND] if self.has_kinds else []), *self.columns.names]
        columns = [pa.array(slots, pa.int32()), *(block.column(name) for name in names)]
        return pa.RecordBatch.from_arrays(columns, schema=self.chunk)

    def states_of(
        self, slots: npt.NDArray[np.int32], states: Sequence[pa.Array], errors: pa.Array | None = None
    ) -> pa.RecordBatch:
        """Return n states of each call as the batch of a States frame.

        Args:
            slots: int32, shape (n,).
            states: One array of n states for each call; states with a storage type are converted back.
            errors: n errors of `ERROR_TYPE`; default: the batch has no such column.
        """
        columns = [convert(column, field.type) for column, field in zip(states, self.states, strict=True)]
        fields = [pa.field(SLOT, pa.int32()), *self.states]
        if errors is not None:
            columns.append(errors)
            fields.append(pa.field(ERROR, ERROR_TYPE))
        return pa.RecordBatch.from_arrays([pa.array(slots, pa.int32()), *columns], schema=pa.schema(fields))

    def outputs_of(self, results: pa.RecordBatch) -> list[pa.Array]:
        """Return the output columns of results, one for each call."""
        return [results.column(f"output_{index}") for index in range(len(self.outputs))]

    def emitted_of(self, results: pa.RecordBatch) -> list[pa.Array]:
        """Return the outputs of n results in the columns of `emitted`, to store them with the states."""
        return [
            pa.StructArray.from_arrays([results.column(f"output_{index}")], fields=list(field.type))
            for index, field in zip(self.varying, self.emitted, strict=True)
        ]

    def with_emitted(self, outputs: pa.RecordBatch, stored_rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the outputs that were last emitted for n stored states: stored ones, or else the computed ones.

        Args:
            outputs: n outputs, as computed from the states.
            stored_rows: n rows that have the columns of `emitted`: NULL where it is not known what was emitted.
        """
        for index, name in zip(self.varying, self.emitted.names, strict=True):
            output = outputs.schema.field(f"output_{index}")
            column, computed_column = stored_rows.column(name), outputs.column(output.name)
            if column.null_count < len(column):
                is_known = column.is_valid().to_numpy(zero_copy_only=False)
                both = pa.concat_arrays([computed_column, column.field(0)])
                emitted_column = both.take(pa.array(np.arange(len(column)) + len(column) * is_known))
                outputs = with_column(outputs, output, emitted_column)
        return outputs

    def knows_outputs(self, stored_rows: pa.RecordBatch) -> bool:
        """Return whether n stored states come with the last outputs of all calls, so that none must be computed."""
        columns = [stored_rows.column(name) for name in self.emitted.names]
        return len(columns) == len(self.outputs) and not any(each.null_count for each in columns)

    def stored_outputs(
        self, slots: npt.NDArray[np.int32], stored_rows: pa.RecordBatch, schema: pa.Schema
    ) -> pa.RecordBatch:
        """Return n outputs that are stored, with their slots, in the schema of results."""
        stored_columns = {f"output_{index}": stored_rows.column(f"{EMITTED}{index}").field(0) for index in self.varying}
        arrays = [
            pa.array(slots, pa.int32()),
            *(stored_columns.get(each.name, pa.nulls(len(slots), each.type)) for each in schema),
        ]
        return pa.RecordBatch.from_arrays([arrays[0], *arrays[2:]], schema=schema)

    @property
    def varying(self) -> list[int]:
        """The numbers of the calls whose last outputs are stored, in `emitted`."""
        return [int(name.removeprefix(EMITTED)) for name in self.emitted.names]

    def results_of(self, results: pa.RecordBatch) -> list[pa.Array]:
        """Return the output columns of results in the types of the query's result."""
        columns = self.outputs_of(results)
        return [convert(column, field.type) for column, field in zip(columns, self.outputs, strict=True)]

    def group(self, keys: pa.RecordBatch) -> dict[str, Any]:
        """Return the key in the only row of a batch, by the user's names, for errors. Invalid UTF-8 becomes bytes."""
        return {name: _show(column[:1]) for name, column in zip(self.names, keys.columns, strict=False)}

    @property
    def partial(self) -> pa.Schema:
        """The output of the first stage: rows, or states with their numbers of rows. `folded` is true for states."""
        rows = [field for field in self.rows if field.name != REAL]
        return pa.schema([*rows, pa.field(LIVE, pa.int64()), *self.carried, pa.field(FOLDED, pa.bool_())])

    def split_block(self, block: pa.RecordBatch) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch, pa.RecordBatch]:
        """Return which rows of a `partial` block are states, its rows, and its states. Mixed blocks are copied."""
        # The seed row is entirely NULL and counts as an empty state.
        is_state = block.column(FOLDED).fill_null(True).to_numpy(zero_copy_only=False)
        rows = block.select([name for name in self.rows.names if name != REAL])
        states = block.select([LIVE, *self.carried.names])
        if is_state.all():
            return is_state, rows.slice(0, 0), states
        if not is_state.any():
            return is_state, rows, states.slice(0, 0)
        return is_state, rows.take(pa.array(np.flatnonzero(~is_state))), states.take(pa.array(np.flatnonzero(is_state)))

    @property
    def results(self) -> pa.Schema:
        """The query's result: keys and outputs with the user's names, and dead letters if errors are isolated."""
        letter = [pa.field(DEAD_LETTER, self.letter)] if self.isolates else []
        return pa.schema([*_with_names(self.keys, self.names), *self.outputs, *letter])

    @property
    def letter(self) -> pa.StructType:
        """The type of a dead letter: key (if the query has keys), error, and row (if the query reads columns)."""
        texts = ("code", "function", "message", "trace", "at", "row_kind")
        members = [pa.field(name, pa.string()) for name in texts]
        if len(self.keys):
            members.insert(0, pa.field("key", pa.struct(_with_names(self.keys, self.names))))
        if len(self.columns):
            members.append(pa.field("row", pa.struct(_with_names(self.columns, self.display_names))))
        return pa.struct(members)


def retracts(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which of n rows with kinds are retractions; bool, shape (n,)."""
    return np.isin(rows.column(KIND).to_numpy(zero_copy_only=False), RETRACTING)


def _show(key: pa.Array) -> Any:
    """Return a key, which is the only value of an array, as a Python value or a text."""
    try:
        return in_microseconds(key)[0].as_py()
    except UnicodeDecodeError:
        return key[0].cast(pa.binary()).as_py()
    except (OverflowError, ValueError):  # a date beyond the year 9999, nanoseconds
        return str(key) if is_nested(key.type) else key[0].cast(pa.string()).as_py()


def _with_names(fields: pa.Schema, names: Sequence[str]) -> list[pa.Field]:
    return [field.with_name(name) for field, name in zip(fields, names, strict=True)]


@dataclass(frozen=True)
class CallView:
    """A view of a query.

    Args:
        call: The number of the call.
        spec: The view.
        prefetch: The columns of the query's rows that make up the key of the entry that a row uses; none if unknown.
        filter: The column of the query's rows that tells which rows the call uses; None: all.
    """

    call: int
    spec: ViewSpec
    prefetch: tuple[str, ...] = ()
    filter: str | None = None

    @property
    def table(self) -> str:
        """The name of the table of its entries."""
        return f"{self.call}.{self.spec.name}"
