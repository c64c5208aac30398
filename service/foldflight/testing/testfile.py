"""A test with literal rows for which a function raises, as text that ruff leaves as it is."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Open, States
from foldflight.functions import Call, Registry, RowKind, ScalarFunction
from foldflight.functions.author.scalar import AnyFunction
from foldflight.functions.types.sql import sql_name
from foldflight.recording.file import Exchanged, Recording
from foldflight.recording.places import module_of
from foldflight.recording.shrink import Shrunk

__all__ = ["test_text"]

_WIDTH: Final = 88
_ROWS_MAX: Final = 1000


class _Code(str):
    """Python code of a value, in place of the value."""

    __slots__ = ()


def test_text(shrunk: Shrunk, registry: Registry, *, source: str) -> str:
    """Return a test that folds the rows, so that it fails while the function raises.

    Args:
        shrunk: The rows.
        registry: The functions.
        source: The name of the recording.

    Raises:
        RejectedError: SIGNATURE, if a test cannot have these rows: the failure needs a state, there are too many rows,
            or the code cannot be imported by its name.
    """
    opening = shrunk.recording.opening
    name = shrunk.error.function or opening.functions[0]
    if shrunk.rows > _ROWS_MAX:
        raise _no_test(f"{shrunk.rows} rows are needed for the failure, and a test has at most {_ROWS_MAX}")
    if opening.maps:
        imports, body = _of_scalar(shrunk, registry)
    else:
        imports, body = _of_calls(shrunk, registry)
    verb = shrunk.error.message.partition(":")[0][:50]
    identifier = "".join(each if each.isalnum() else "_" for each in name)
    standard = [f"import {module}" for module in ("datetime", "decimal") if any(f"{module}." in line for line in body)]
    lines = [
        f'"""From {source}."""'[:_WIDTH],
        *_section(standard),
        *imports,
        "",
        "",
        f"def test_{identifier}_takes_recorded_rows() -> None:",
        f'    """Fold rows for which {verb}."""',
        *(f"    {line}" for line in body),
    ]
    return "\n".join(lines) + "\n"


def _section(lines: Sequence[str]) -> list[str]:
    return ["", *lines] if lines else []


def _no_test(why: str) -> RejectedError:
    return RejectedError("SIGNATURE", f"a test cannot be written: {why}; replay the recording with --break instead")


def _imported(function: AnyFunction) -> tuple[str, str]:
    """Return module and name of the author's code."""
    module, _, name = module_of(function).partition(":")
    if module == "__main__" or not name.isidentifier():
        raise _no_test(f"{module}.{name} cannot be imported by a test; move it to the top of a module")
    return module, name


def _imports(imported: Sequence[tuple[str, str]]) -> list[str]:
    """Return import statements: first those of installed packages, then those of the project in this folder."""
    lines: dict[bool, list[str]] = {False: [], True: []}
    for module, name in sorted(set(imported)):
        root = module.partition(".")[0]
        is_own = any(Path(folder, root + suffix).exists() for folder in (".", "src") for suffix in ("", ".py"))
        lines[is_own].append(f"from {module} import {name}")
    return [*_section(lines[False]), *_section(lines[True])]


def _of_scalar(shrunk: Shrunk, registry: Registry) -> tuple[list[str], list[str]]:
    """Return the imports and the body of a test that calls a function written with `def`."""
    (step, *others) = shrunk.recording.opening.steps
    function = registry[step.function]
    is_plain = isinstance(function, ScalarFunction) and isinstance(function.source, FunctionType)
    if others or not is_plain or getattr(function, "vectorised", None) or step.literals:
        raise _no_test("of scalar and table functions only single ones that are written with def, row by row, have one")
    module, name = _imported(function)
    rows = [
        tuple(row[each.column] for each in step.arguments)
        for frame in shrunk.steps
        if isinstance(frame.frame, Chunk)
        for row in frame.frame.batch.to_pylist(maps_as_pydicts="lossy")
    ]
    calls = [line for row in rows for line in _layout(_Call(name, row), 4)]
    return _imports([(module, name)]), calls


def _of_calls(shrunk: Shrunk, registry: Registry) -> tuple[list[str], list[str]]:
    """Return the imports and the body of a test with `run_epochs`."""
    if any(isinstance(step.frame, States) for step in shrunk.steps):
        raise _no_test(
            "the failure needs a state, and the rows that made it are not in the recording. Record the stream from its "
            "beginning (Recordings(..., of='all'))"
        )
    opening, classes = shrunk.recording.opening, []
    outputs: dict[str, Any] = {}
    for place, call in enumerate(opening.calls):
        function = registry[call.function]
        if module_of(function).startswith("foldflight."):
            made = f'connect("embedded:")["{call.function}"]'
        else:
            classes.append(_imported(function))
            made = f"connect({classes[-1][1]})"
        outputs["result" if len(opening.calls) == 1 else f"result_{place}"] = _Code(made + _use(call))
    keys, groups = _keys(shrunk.recording, opening)
    named: dict[str, Any] = {"keys": list(keys)} if keys else {}
    types = _types(opening, registry, keys)
    if types:
        named["types"] = types
    named["epochs"] = list(_epochs(shrunk.steps, groups))
    ours = [("foldflight", "connect"), ("foldflight.testing", "run_epochs")]
    return _imports([*ours, *classes]), _layout(_Call("run_epochs", (outputs,), named), 4)


def _use(call: Call) -> str:
    """Return the code of a call after its function."""
    given = [*map(_leaf, call.arguments), *(f"{name}={_inline(value)}" for name, value in call.literals.items())]
    text = f"({', '.join(given)})"
    text += f".where({_leaf(call.filter)})" if call.filter is not None else ""
    text += ".distinct()" if call.distinct else ""
    orders = [
        f"{key.column}{' DESC' if key.descending else ' ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"
        for key in call.order
    ]
    return text + (f".order_by({', '.join(map(_leaf, orders))})" if orders else "")


def _keys(recording: Recording, opening: Open) -> tuple[list[str], Mapping[int, Mapping[str, Any]]]:
    """Return the key columns of the test, and the key of each slot."""
    if "slot" not in opening.columns.names:
        return [], {}
    groups = recording.groups
    if groups:
        return list(next(iter(groups.values()))), groups
    slots = {slot for step in recording.steps if isinstance(step.frame, Chunk) for slot in _slots(step.frame)}
    return ["slot"], {slot: {"slot": slot} for slot in slots}


def _slots(chunk: Chunk) -> list[int]:
    slots: list[int] = chunk.batch.column("slot").to_pylist()
    return slots


def _types(opening: Open, registry: Registry, keys: Sequence[str]) -> dict[str, str]:
    """Return the types of columns that neither a function declares nor the values tell."""
    undeclared = [
        name
        for call in opening.calls
        if registry[call.function].input_types is None
        for name in (*call.arguments, *(key.column for key in call.order))
    ]
    fields = [opening.columns.field(name) for name in dict.fromkeys(undeclared) if name not in keys]
    return {each.name: sql_name(each.type) for each in fields if not pa.types.is_null(each.type)}


def _epochs(steps: Sequence[Exchanged], groups: Mapping[int, Mapping[str, Any]]) -> Iterator[list[Any]]:
    """Yield the rows of each epoch."""
    rows: list[Any] = []
    is_due = True
    for step in steps:
        if isinstance(step.frame, Barrier):
            yield rows
            rows, is_due = [], False
        elif isinstance(step.frame, Chunk):
            is_due = True
            for row in step.frame.batch.to_pylist(maps_as_pydicts="lossy"):
                slot, kind = row.pop("slot", 0), row.pop("kind", 0)
                whole = {**groups.get(slot, {}), **row}
                rows.append(whole if not kind else (RowKind(kind).short, whole))
    if is_due:
        yield rows


# -- layout ----------------------------------------------------------------------------------------------------------


class _Call:
    """A call in the code of a test."""

    def __init__(self, name: str, given: Sequence[Any], named: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.given = given
        self.named = named or {}


def _layout(value: Any, indent: int, prefix: str = "", suffix: str = "") -> list[str]:
    """Return the lines of a value. One that does not fit into a line has a line for each of its parts."""
    line = f"{prefix}{_inline(value)}{suffix}"
    is_epochs = isinstance(value, list) and any(isinstance(each, (list, dict, tuple)) for each in value)
    if indent + len(line) <= _WIDTH and not is_epochs and not isinstance(value, _Call):
        return [line]
    opened, closed, parts = _parts(value)
    if opened is None:
        return [line]
    if isinstance(value, _Call) and indent + len(line) <= _WIDTH and not value.named:
        return [line]
    inner = [each for name, part in parts for each in _layout(part, indent + 4, name, ",")]
    return [f"{prefix}{opened}", *(f"    {each}" for each in inner), f"{closed}{suffix}"]


def _parts(value: Any) -> tuple[str | None, str, list[tuple[str, Any]]]:
    """Return how a value opens and closes, and its parts with their names; None if it has no parts."""
    match value:
        case _Call():
            named = [(f"{name}=", part) for name, part in value.named.items()]
            return f"{value.name}(", ")", [*(("", part) for part in value.given), *named]
        case dict() if value:
            return "{", "}", [(f"{_leaf(name)}: ", part) for name, part in value.items()]
        case list() if value:
            return "[", "]", [("", part) for part in value]
        case tuple() if value:
            return "(", ")", [("", part) for part in value]
    return None, "", []


def _inline(value: Any) -> str:
    opened, closed, parts = _parts(value)
    if opened is None:
        return _leaf(value)
    end = "," if isinstance(value, tuple) and len(value) == 1 else ""
    return f"{opened}{', '.join(name + _inline(part) for name, part in parts)}{end}{closed}"


def _leaf(value: Any) -> str:
    """Return the code of a value without parts."""
    match value:
        case _Code():
            return str(value)
        case str():
            return _quoted(repr(value))
        case bytes():
            return "b" + _quoted(repr(value)[1:])
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case decimal.Decimal():
            return f'decimal.Decimal("{value}")'
        case datetime.datetime() | datetime.date() | datetime.time():
            return f'datetime.{type(value).__name__}.fromisoformat("{value.isoformat()}")'
        case None | bool() | int() | float() | datetime.timedelta() | dict() | list() | tuple():
            return repr(value)
    raise _no_test(f"the value {value!r:.100} of type {type(value).__name__} has no literal")


def _quoted(text: str) -> str:
    """Return a literal in double quotes, if that needs no further backslashes."""
    inside = text[1:-1]
    if text.startswith('"') or '"' in inside:
        return text
    return '"' + inside.replace("\\'", "'") + '"'
