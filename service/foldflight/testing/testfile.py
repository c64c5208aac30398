"""A test with literal rows for which a function raises or answers otherwise, as text that ruff leaves as it is."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import pyarrow as pa

from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Open, States
from foldflight.functions import Call, Registry, RowKind, ScalarFunction
from foldflight.functions.author.scalar import AnyFunction
from foldflight.functions.types.sql import sql_name
from foldflight.recording.file import Pair, Recording
from foldflight.recording.places import module_of
from foldflight.recording.replay import Difference, slots_in

__all__ = ["test_text"]

_WIDTH: Final = 88
_ROWS_MAX: Final = 1000


class _Code(str):
    """Python code of a value, in place of the value."""

    __slots__ = ()


def test_text(recording: Recording, registry: Registry, *, shows: FoldflightError | Difference) -> str:
    """Return a test that folds the rows, so that it fails while the function raises, or answers otherwise.

    Args:
        recording: The recording, with the calls and rows that are needed.
        registry: The functions.
        shows: The error, or the answer that differs.

    Raises:
        RejectedError: SIGNATURE, if a test cannot have these rows: the failure needs a state, there are too many rows,
            or the code cannot be imported by its name.
    """
    opening, source = recording.opening, recording.about.get("file", "dead letters")
    if isinstance(shows, FoldflightError):
        name = shows.function or opening.functions[0]
        does, why = "takes", f"Fold rows for which {_plain(shows.message.partition(':')[0][:40])}."
    else:
        name, does, why = shows.column, "answers", "Fold rows, and compare with the recorded answer."
    rows = sum(len(slots_in(pair.frame)) for pair in recording.pairs)
    if rows > _ROWS_MAX:
        raise _no_test(f"it would need {rows} rows, and a test has at most {_ROWS_MAX}")
    if opening.maps:
        imports, body = _of_scalar(recording, registry)
    else:
        imports, body = _of_calls(recording, registry, "(epoch,) = " if isinstance(shows, Difference) else "")
    if isinstance(shows, Difference):
        value = 'epoch.changelog[-1][1]["result"]'
        if "nan" in repr(shows.recorded) or shows.recorded == shows.replayed:  # NaN equals nothing, and 0.0 equals -0.0
            body += [*_layout(shows.recorded, 4, "recorded = "), f"assert repr({value}) == repr(recorded)"]
        else:
            body += _layout(shows.recorded, 4, f"assert {value} == ")
    identifier = "".join(each if each.isalnum() else "_" for each in name)
    standard = [f"import {module}" for module in ("datetime", "decimal") if any(f"{module}." in line for line in body)]
    lines = [
        f'"""From {_plain(source[-70:])}."""',
        *_section(standard),
        *imports,
        "",
        "",
        f"def test_{identifier[:40]}_{does}_recorded_rows() -> None:",
        f'    """{why}"""',
        *(f"    {line}" for line in body),
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return text that is safe in a docstring: a recording may come from others."""
    return "".join(each if each.isprintable() and each not in '"\\' else "_" for each in text)


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
        line = f"from {module} import {name}"
        lines[is_own] += [line] if len(line) <= _WIDTH else [f"from {module} import (", f"    {name},", ")"]
    return [*_section(lines[False]), *_section(lines[True])]


def _of_scalar(recording: Recording, registry: Registry) -> tuple[list[str], list[str]]:
    """Return the imports and the body of a test that calls a function written with `def`."""
    (step, *others) = recording.opening.steps
    function = registry[step.function]
    is_plain = isinstance(function, ScalarFunction) and isinstance(function.source, FunctionType)
    if others or not is_plain or getattr(function, "vectorised", None) or step.literals:
        raise _no_test("of scalar and table functions only single ones that are written with def, row by row, have one")
    module, name = _imported(function)
    rows = [
        tuple(row[each.column] for each in step.arguments)
        for pair in recording.pairs
        if isinstance(pair.frame, Chunk)
        for row in pair.frame.batch.to_pylist(maps_as_pydicts="lossy")
    ]
    calls = [line for row in rows for line in _layout(_Call(name, row), 4)]
    return _imports([(module, name)]), calls


def _of_calls(recording: Recording, registry: Registry, prefix: str) -> tuple[list[str], list[str]]:
    """Return the imports and the body of a test with `run_epochs`."""
    if any(isinstance(pair.frame, States) for pair in recording.pairs):
        raise _no_test(
            "it needs a state, and the rows that made it are not in the recording. Record the stream from its "
            "beginning (Recordings(..., of='all'))"
        )
    opening, classes = recording.opening, []
    outputs: dict[str, Any] = {}
    lines: list[str] = []
    for index, call in enumerate(opening.calls):
        function = registry[call.function]
        if module_of(function).startswith("foldflight."):
            made = f'connect("embedded:")["{call.function}"]'
        else:
            classes.append(_imported(function))
            made = f"connect({classes[-1][1]})"
        name, methods = "result" if len(opening.calls) == 1 else f"result_{index}", _methods(call)
        code = made + "".join(_inline(each) for each in methods)
        if len(code) + len(name) > _WIDTH - 17:  # as an item of the mapping it would be too long for a line
            for each in methods:
                lines += _layout(_Call(made + each.name, each.given), 4, f"{name} = ")
                made = code = name
        outputs[name] = _Code(code)
    keys, groups = _keys(recording, opening)
    named: dict[str, Any] = {"keys": list(keys)} if keys else {}
    types = _types(opening, registry, keys)
    if types:
        named["types"] = types
    named["epochs"] = list(_epochs(recording.pairs, groups))
    ours = [("foldflight", "connect"), ("foldflight.testing", "run_epochs")]
    return _imports([*ours, *classes]), [*lines, *_layout(_Call(f"{prefix}run_epochs", (outputs,), named), 4)]


def _methods(call: Call) -> list[_Call]:
    """Return the calls that follow the function."""
    literals = (_Code(f"{name}={_inline(value)}") for name, value in call.literals.items())
    methods = [_Call("", (*call.arguments, *literals))]
    if call.filter is not None:
        methods.append(_Call(".where", (call.filter,)))
    if call.distinct:
        methods.append(_Call(".distinct", ()))
    orders = [
        f"{key.column}{' DESC' if key.descending else ' ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"
        for key in call.order
    ]
    return [*methods, _Call(".order_by", orders)] if orders else methods


def _keys(recording: Recording, opening: Open) -> tuple[list[str], Mapping[int, Mapping[str, Any]]]:
    """Return the key columns of the test, and the key of each slot."""
    if "slot" not in opening.columns.names:
        return [], {}
    groups = recording.groups
    if groups:
        return list(next(iter(groups.values()))), groups
    slots = {slot for pair in recording.pairs for slot in slots_in(pair.frame)}
    return ["slot"], {slot: {"slot": slot} for slot in slots}


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


def _epochs(pairs: Sequence[Pair], groups: Mapping[int, Mapping[str, Any]]) -> Iterator[list[Any]]:
    """Yield the rows of each epoch."""
    rows: list[Any] = []
    is_due = True
    for pair in pairs:
        if isinstance(pair.frame, Barrier):
            yield rows
            rows, is_due = [], False
        elif isinstance(pair.frame, Chunk):
            is_due = True
            for row in pair.frame.batch.to_pylist(maps_as_pydicts="lossy"):
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
        return _broken(value, indent, prefix, suffix) or [line]
    if isinstance(value, _Call) and indent + len(line) <= _WIDTH and not value.named:
        return [line]
    inner = [each for name, part in parts for each in _layout(part, indent + 4, name, ",")]
    return [f"{prefix}{opened}", *(f"    {each}" for each in inner), f"{closed}{suffix}"]


def _broken(value: Any, indent: int, prefix: str, suffix: str) -> list[str]:
    """Return the lines of a long text in parentheses; none of a value that cannot be broken."""
    if not isinstance(value, (str, bytes)) or isinstance(value, _Code):
        return []
    pieces, start = [], 0
    while start < len(value):
        end = start + 1
        while end < len(value) and indent + 4 + len(_leaf(value[start : end + 1])) <= _WIDTH:
            end += 1
        pieces.append(f"    {_leaf(value[start:end])}")
        start = end
    return [f"{prefix}(", *pieces, f"){suffix}"]


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
