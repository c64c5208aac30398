"""Dead letters as a recording: the rows of failed groups, as a query with isolated errors returned them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from foldflight.errors import FunctionError, RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Open
from foldflight.functions import AnyFunction, Call, Function, RowKind
from foldflight.recording.file import Exchanged, Recording
from foldflight.recording.places import module_of

__all__ = ["read_letters"]

_COLUMNS: Final = ("code", "function", "message", "row_kind", "row")
_KINDS: Final = {kind.short: int(kind) for kind in RowKind}


def read_letters(path: Path, functions: Sequence[AnyFunction], arguments: Sequence[str] | None) -> Recording:
    """Read dead letters of one function from Parquet.

    Args:
        path: A file or a folder, as `dead_letters(df).write.parquet(...)` wrote it.
        functions: The functions that the caller gives. One of them must be that of the letters, or the only one.
        arguments: The columns of `row` that are its arguments. Default: all, which must then be as many as it takes.

    Raises:
        RejectedError: SETTINGS, if the files cannot be read; SCHEMA_MISMATCH, if they have no dead letters, or the
            columns do not fit the function.
    """
    try:
        table = ds.dataset(path, format="parquet").to_table()
    except (pa.ArrowException, OSError) as error:
        raise RejectedError("SETTINGS", f"cannot read dead letters from {path}: {error}") from None
    missing = [name for name in _COLUMNS if name not in table.schema.names]
    if missing or not table.num_rows:
        what = f"no column {missing[0]}" if missing else "no rows"
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{path} has {what}; write the result of dead_letters(df) as Parquet. Letters of a query that reads no "
            "columns have no rows to replay",
        )
    name = table.column("function")[0].as_py()
    table = table.filter(pc.equal(table.column("function"), name))
    function = next((each for each in functions if each.name == name), functions[0] if len(functions) == 1 else None)
    if function is None:
        raise RejectedError(
            "UNKNOWN_FUNCTION", f"{path} has dead letters of {name}; give its code with --function module:Class"
        )
    if not isinstance(function, Function):
        raise RejectedError("SIGNATURE", f"{name} is no aggregate function; call it with the rows of the letters")
    return _recording(table.filter(table.column("row").is_valid()), name, function, arguments)


def _recording(table: pa.Table, name: str, function: Function, arguments: Sequence[str] | None) -> Recording:
    rows = table.column("row").combine_chunks()
    columns = {field.name: rows.field(place) for place, field in enumerate(rows.type)}
    chosen = list(columns) if arguments is None else list(arguments)
    unknown = [each for each in chosen if each not in columns]
    if unknown or not function.inputs_min <= len(chosen) <= len(function.input_names):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{function.signature} does not take the columns {', '.join(chosen)} of the dead letters, which have "
            f"{', '.join(columns)}; name the arguments with --arguments",
        )
    keys = table.column("key").to_pylist() if "key" in table.schema.names else [{}] * table.num_rows
    slots: dict[str, int] = {}
    groups: dict[int, dict[str, Any]] = {}
    numbers = []
    for key in keys:
        numbers.append(slots.setdefault(repr(key), len(slots)))
        groups.setdefault(numbers[-1], key)
    kinds = [_KINDS.get(kind, 0) for kind in table.column("row_kind").to_pylist()]
    arrays = [pa.array(numbers, pa.int32()), pa.array(kinds, pa.int8()), *(columns[each] for each in chosen)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["slot", "kind", *chosen])
    first = {each: table.column(each)[0].as_py() for each in ("code", "message")}
    known = first["code"] if first["code"] in FunctionError.codes else "USER_CODE"
    return Recording(
        about={"names": [(name, module_of(function))]},
        opening=Open((Call(name, tuple(chosen)),), batch.schema),
        steps=(Exchanged(Chunk(batch)), Exchanged(Barrier(1))),
        groups=groups,
        error=FunctionError(known, first["message"] or "", function=name, slot=numbers[0]),
    )
