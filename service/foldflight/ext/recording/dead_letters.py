"""Read dead letters, the rows of failed groups of a query with isolated errors, as a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from foldflight.errors import FunctionError, RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Open
from foldflight.ext.recording.code import facts_of
from foldflight.ext.recording.file import Pair, Recording
from foldflight.functions import AnyFunction, Call, Function, RowKind

_COLUMNS: Final = ("code", "function", "message", "row_kind", "row")
_KINDS: Final = {kind.short: int(kind) for kind in RowKind}


def read_dead_letters(
    path: Path, functions: Sequence[AnyFunction], arguments: Sequence[str] | None, literals: Mapping[str, Any]
) -> Recording:
    """Read dead letters of one function from Parquet.

    Args:
        path: A file or a folder, as `dead_letters(df).write.parquet(...)` wrote it.
        functions: The functions of the caller: one with the name in the letters, or a single one.
        arguments: The columns of `row` that are its arguments. Default: all columns.
        literals: The direct arguments of the query, which dead letters do not contain.

    Raises:
        RejectedError: SETTINGS, if the files cannot be read; SCHEMA_MISMATCH, if they have no dead letters, or the
            columns do not fit the function; SIGNATURE, if a direct argument is missing.
    """
    if path.is_dir() and any(path.glob("*.recording")):
        raise RejectedError("SETTINGS", f"{path} is a folder of recordings; give one of its files")
    if not path.exists():
        raise RejectedError("SETTINGS", f"cannot read dead letters from {path}: there is no such file or folder")
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
    if not pa.types.is_struct(table.schema.field("row").type):
        raise RejectedError("SCHEMA_MISMATCH", f"{path} has no dead letters: its column row is no struct")
    name = table.column("function")[0].as_py()
    table = table.filter(pc.equal(table.column("function"), name))
    function = next((each for each in functions if each.name == name), functions[0] if len(functions) == 1 else None)
    if function is None:
        raise RejectedError(
            "UNKNOWN_FUNCTION", f"{path} has dead letters of {name}; give its code with --function module:Class"
        )
    if not isinstance(function, Function):
        raise RejectedError("SIGNATURE", f"{name} is no aggregate function; call it with the rows of the letters")
    absent = [each.name for each in function.parameters if each.required and each.name not in literals]
    if absent:
        raise RejectedError(
            "SIGNATURE",
            f"{function.signature} needs the direct argument {absent[0]!r}, which dead letters do not have; give it as "
            f"in the query with --set {absent[0]}=...",
        )
    call = Call(name, _arguments_in(table, function, arguments), literals=literals)
    table = table.filter(table.column("row").is_valid())
    if not table.num_rows:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the dead letters of {name} have no rows to replay: its groups failed without one"
        )
    return _recording(table, call, function)


def _arguments_in(table: pa.Table, function: Function, arguments: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of `row` that are the arguments. Raises RejectedError SCHEMA_MISMATCH."""
    columns = [each.name for each in table.schema.field("row").type]
    names = columns if arguments is None else arguments
    unknown_names = [each for each in names if each not in columns]
    if unknown_names or not function.inputs_min <= len(names) <= len(function.input_names):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{function.signature} does not take the columns {', '.join(names)} of the dead letters, which have "
            f"{', '.join(columns)}; name the arguments with --arguments",
        )
    return tuple(names)


def _recording(table: pa.Table, call: Call, function: Function) -> Recording:
    rows = table.column("row").combine_chunks()
    columns = {field.name: rows.field(index) for index, field in enumerate(rows.type)}
    keys = table.column("key").to_pylist() if "key" in table.schema.names else [{}] * table.num_rows
    slots: dict[str, int] = {}
    groups: dict[int, dict[str, Any]] = {}
    numbers = []
    for key in keys:
        numbers.append(slots.setdefault(repr(key), len(slots)))
        groups.setdefault(numbers[-1], key)
    kinds = [_KINDS.get(kind, 0) for kind in table.column("row_kind").to_pylist()]
    arrays = [pa.array(numbers, pa.int32()), pa.array(kinds, pa.int8()), *(columns[each] for each in call.arguments)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["slot", "kind", *call.arguments])
    first = {each: table.column(each)[0].as_py() for each in ("code", "message")}
    code = first["code"] if first["code"] in FunctionError.codes else "USER_CODE"
    return Recording(
        about={"functions": [{**facts_of(function), "name": call.function}]},
        open_request=Open((call,), batch.schema),
        pairs=(Pair(Chunk(batch)), Pair(Barrier(1))),
        groups=groups,
        error=FunctionError(code, first["message"] or "", function=call.function, slot=numbers[0]),
    )
