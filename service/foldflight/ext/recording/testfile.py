"""A test with literal rows for which a function raises or answers otherwise."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterator, Mapping, Sequence
from pprint import pformat
from types import FunctionType
from typing import Any, Final

import pyarrow as pa

from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Open, States
from foldflight.ext.recording.code import is_java, module_of
from foldflight.ext.recording.file import Pair, Recording, slots_in
from foldflight.ext.recording.replay import Difference
from foldflight.functions import Call, Registry, RowKind, ScalarFunction
from foldflight.functions.author.spec import AnyFunction
from foldflight.functions.types.arrow import rows_to_display
from foldflight.functions.types.sql import sql_name

_WIDTH: Final = 84
_ROWS_MAX: Final = 1000


class _Code:
    """Code in place of a value whose `repr` is none, or none with the modules that a test imports."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def test_text(recording: Recording, registry: Registry, *, shows: FoldflightError | Difference) -> str:
    """Return a test that folds the rows, so that it fails while the function raises, or answers otherwise.

    Raises:
        RejectedError: SIGNATURE, if a test cannot have these rows: the failure needs a state, there are too many rows,
            or the code cannot be imported by its name.
    """
    open_request, source = recording.open_request, recording.about.get("file", "dead letters")
    rows = sum(len(slots_in(pair.frame)) for pair in recording.pairs)
    if rows > _ROWS_MAX:
        raise _no_test(f"it would need {rows} rows, and a test has at most {_ROWS_MAX}")
    imports, body = _of_scalar(recording, registry) if open_request.maps else _of_calls(recording, registry)
    if isinstance(shows, FoldflightError):
        name = shows.function or open_request.functions[0]
        does, why = "takes", f"Fold rows for which {_plain(shows.message.partition(':')[0][:40])}."
    else:
        name, does, why = shows.column, "answers", "Fold rows, and compare with the recorded answer."
        # NaN equals nothing, and 0.0 equals -0.0.
        is_text = "nan" in repr(shows.recorded) or shows.recorded == shows.replayed
        comparison = "repr({}) == repr(recorded)" if is_text else "{} == recorded"
        body[-1] = f"(epoch,) = {body[-1]}"
        body += [*_lines("recorded", shows.recorded), "assert " + comparison.format('epoch.changelog[-1][1]["result"]')]
    identifier = "".join(each if each.isalnum() else "_" for each in name)
    standard = [f"import {module}" for module in ("datetime", "decimal") if any(f"{module}." in line for line in body)]
    lines = [
        f'"""From {_plain(source[-70:])}."""',
        "",
        *([*standard, ""] if standard else []),
        *sorted(f"from {module} import {name}" for module, name in imports),
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


def _no_test(why: str) -> RejectedError:
    return RejectedError("SIGNATURE", f"a test cannot be written: {why}; replay the recording with --break instead")


def _import_name(function: AnyFunction) -> tuple[str, str]:
    """Return module and name of the author's code."""
    module, _, name = module_of(function).partition(":")
    if module == "__main__" or not name.isidentifier():
        raise _no_test(f"{module}.{name} cannot be imported by a test; move it to the top of a module")
    return module, name


def _of_scalar(recording: Recording, registry: Registry) -> tuple[set[tuple[str, str]], list[str]]:
    """Return the imports and the body of a test that calls a function written with `def`."""
    (step, *others) = recording.open_request.steps
    function = registry[step.function]
    is_plain = isinstance(function, ScalarFunction) and isinstance(function.source, FunctionType)
    if others or not is_plain or getattr(function, "vectorised", None) or step.literals:
        raise _no_test("of scalar and table functions only single ones that are written with def, row by row, have one")
    module, name = _import_name(function)
    rows = [
        tuple(row[str(each.column)] for each in step.arguments)
        for pair in recording.pairs
        if isinstance(pair.frame, Chunk)
        for row in rows_to_display(pair.frame.batch)
    ]
    return {(module, name)}, [*_lines("rows", rows), "for row in rows:", f"    {name}(*row)"]


def _of_calls(recording: Recording, registry: Registry) -> tuple[set[tuple[str, str]], list[str]]:
    """Return the imports and the body of a test with `run_epochs`, which is its last line."""
    open_request = recording.open_request
    if any(isinstance(pair.frame, States) for pair in recording.pairs):
        is_stream = open_request.returns.states or open_request.row_outputs
        remedy = (
            "Record the stream from its beginning (Recordings(..., of='all'))"
            if is_stream
            else "Run the query with on_error='isolate', and replay its dead letters, which are rows"
        )
        raise _no_test(f"it needs a state, and the rows that made it are not in the recording. {remedy}")
    imports = {("foldflight", "connect"), ("foldflight.testing", "run_epochs")}
    outputs: dict[str, Any] = {}
    for index, call in enumerate(open_request.calls):
        function = registry[call.function]
        if module_of(function).startswith("foldflight."):
            function_text = f"connect('embedded:')[{call.function!r}]"
        elif is_java(function):
            function_text = f"connect('embedded:', java=[{module_of(function)!r}])[{call.function!r}]"
        else:
            imports.add(_import_name(function))
            function_text = f"connect({_import_name(function)[1]})"
        outputs["result" if len(open_request.calls) == 1 else f"result_{index}"] = _Code(function_text + _methods(call))
    keys, groups = _keys(recording, open_request)
    arguments = {"outputs": outputs, "epochs": list(_epochs(recording.pairs, groups, emits=open_request.emits))}
    arguments |= {
        name: each for name, each in (("keys", keys), ("types", _types(open_request, registry, keys))) if each
    }
    lines = [line for name, value in arguments.items() for line in _lines(name, value)]
    keyword_texts = [f"{name}={name}" for name in arguments if name not in ("outputs", "epochs")]
    return imports, [*lines, f"run_epochs({', '.join(('outputs', 'epochs', *keyword_texts))})"]


def _methods(call: Call) -> str:
    """Return the arguments of a call, and the methods that follow it, as code."""
    literals = (f"{name}={_literal(value)!r}" for name, value in call.literals.items())
    code = f"({', '.join((*map(repr, call.arguments), *literals))})"
    code += "" if call.filter is None else f".where({call.filter!r})"
    code += ".distinct()" if call.distinct else ""
    orders = [
        f"{key.column}{' DESC' if key.descending else ' ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"
        for key in call.order
    ]
    return f"{code}.order_by({', '.join(map(repr, orders))})" if orders else code


def _keys(recording: Recording, open_request: Open) -> tuple[list[str], Mapping[int, Mapping[str, Any]]]:
    """Return the key columns of the test, and the key of each slot."""
    if "slot" not in open_request.columns.names:
        return [], {}
    groups = recording.groups
    if groups:
        return list(next(iter(groups.values()))), groups
    slots = {slot for pair in recording.pairs for slot in slots_in(pair.frame)}
    return ["slot"], {slot: {"slot": slot} for slot in slots}


def _types(open_request: Open, registry: Registry, keys: Sequence[str]) -> dict[str, str]:
    """Return the types of columns that neither a function declares nor the values tell."""
    undeclared_names = [
        name
        for call in open_request.calls
        if registry[call.function].input_types is None
        for name in (*call.arguments, *(key.column for key in call.order))
    ]
    fields = [open_request.columns.field(name) for name in dict.fromkeys(undeclared_names) if name not in keys]
    return {each.name: sql_name(each.type) for each in fields if not pa.types.is_null(each.type)}


def _epochs(pairs: Sequence[Pair], groups: Mapping[int, Mapping[str, Any]], *, emits: bool) -> Iterator[list[Any]]:
    """Yield the rows of each epoch, without the column that tells which rows of OVER have outputs."""
    rows: list[Any] = []
    is_due = True
    for pair in pairs:
        if isinstance(pair.frame, Barrier):
            yield rows
            rows, is_due = [], False
        elif isinstance(pair.frame, Chunk):
            is_due = True
            for row in rows_to_display(pair.frame.batch):
                slot, kind = row.pop("slot", 0), row.pop("kind", 0)
                if emits:
                    row.pop("emit", None)
                whole = {**groups.get(slot, {}), **row}
                rows.append(whole if not kind else (RowKind(kind).short, whole))
    if is_due:
        yield rows


def _lines(name: str, value: Any) -> list[str]:
    """Return the lines of an assignment."""
    start = f"{name} = "
    lines = pformat(_literal(value), width=_WIDTH - len(start), sort_dicts=False).split("\n")
    return [start + lines[0], *(" " * len(start) + line for line in lines[1:])]


def _literal(value: Any) -> Any:
    """Return a value whose `repr` is its code, with the modules datetime and decimal."""
    match value:
        case dict():
            return {_literal(name): _literal(part) for name, part in value.items()}
        case pa.MonthDayNano():  # an interval, which Arrow takes as a plain tuple, too
            return tuple(value)
        case list() | tuple():
            return type(value)(map(_literal, value))
        case float() if not math.isfinite(value):
            return _Code(f"float('{value}')")
        case decimal.Decimal():
            return _Code(f"decimal.Decimal('{value}')")
        case datetime.datetime():  # its time zone may have no literal
            return _Code(f"datetime.datetime.fromisoformat('{value.isoformat()}')")
        case None | bool() | int() | float() | str() | bytes() | datetime.date() | datetime.time():
            return value
        case datetime.timedelta() | _Code():
            return value
    raise _no_test(f"the value {value!r:.100} of type {type(value).__name__} has no literal")
