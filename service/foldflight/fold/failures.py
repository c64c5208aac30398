"""Errors of authors' code. With isolation, a failed group is skipped until the barrier, and other groups continue."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.rows import Mask, Slots

ERROR: Final = "error"
_TEXTS: Final = ("code", "function", "message", "row", "trace")
ERROR_TYPE: Final = pa.struct([pa.field(name, pa.string()) for name in _TEXTS])
# Messages may contain whole accumulators, and a million groups may fail. So there are limits of one text, of all texts
# together, and, once these have reached it, of a message. Errors after that have no row and no trace.
_TEXT_CHARS_MAX: Final = 4096
_ALL_CHARS_MAX: Final = 64 << 20
_LATE_CHARS_MAX: Final = 80
_OURS: Final = str(Path(__file__).parent.parent) + os.sep
_STACK_FRAMES_MAX: Final = 12
# The causes of these errors may be temporary: files, networks (as most libraries raise them), memory.
_PASSING: Final = (OSError, MemoryError)
_TRACES_MAX: Final = 64
# Prefixes of stack frames between foldflight and the author's Java code, which are left out.
_JAVA_BRIDGE: Final = (
    "at foldflight.",
    "at org.jpype.",
    "at java.base/java.lang.invoke.",
    "at java.base/jdk.internal.",
)
# Prefixes of Java exceptions whose causes may be temporary, as in `_PASSING`.
_JAVA_PASSING: Final = ("java.io.", "java.net.", "java.nio.", "java.lang.OutOfMemoryError")
_JAVA_STACK_FRAMES_MAX: Final = 40
_traces: Final[dict[tuple[tuple[CodeType, int], ...], str]] = {}


class Failures:
    """The slots that have failed since the last barrier, each with its first error.

    Args:
        isolates: Whether errors of single slots are recorded. If not, each error ends the exchange.

    Attributes:
        counts: The number of failed slots so far, by function.
    """

    def __init__(self, *, isolates: bool = False) -> None:
        self.isolates = isolates
        self.counts: Counter[str] = Counter()
        self._takes = isolates
        self._errors: dict[int, dict[str, str | None]] = {}
        self._chars = 0

    def __bool__(self) -> bool:
        """Return whether any slot has failed."""
        return bool(self._errors)

    def __contains__(self, slot: int) -> bool:
        """Return whether a slot has failed."""
        return slot in self._errors

    def take(self, error: FunctionError) -> bool:
        """Record the error of its slot. Return False if it must be raised instead, because it concerns all slots."""
        if not self._takes or error.slot is None or error.limit is not None:
            return False
        if error.slot not in self._errors:
            self._keep(error.slot, {name: getattr(error, name) for name in _TEXTS})
            self.counts[error.function or ""] += 1
        return True

    def _keep(self, slot: int, texts: dict[str, str | None]) -> None:
        if self._chars > _ALL_CHARS_MAX:
            texts = {**texts, "row": None, "trace": None}
        chars_max = _TEXT_CHARS_MAX if self._chars <= _ALL_CHARS_MAX else _LATE_CHARS_MAX
        self._errors[slot] = {name: _short(text, chars_max) for name, text in texts.items()}
        self._chars += sum(len(text) for text in self._errors[slot].values() if text is not None)

    @contextlib.contextmanager
    def propagate(self) -> Iterator[None]:
        """Suspend isolation: new errors propagate."""
        self._takes = False
        try:
            yield
        finally:
            self._takes = self.isolates

    def restore(self, slots: Slots, errors: pa.Array) -> None:
        """Record the errors of n slots that failed in another fold; NULL for slots without errors.

        Raises:
            RejectedError: SCHEMA_MISMATCH, if errors are not isolated or have the wrong type.
        """
        if not self.isolates or errors.type != ERROR_TYPE:
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the states have a column {ERROR}, "
                + (
                    f"which is {errors.type} and must be {ERROR_TYPE}"
                    if self.isolates
                    else "and Open isolates no errors"
                ),
            )
        for index in np.flatnonzero(errors.is_valid().to_numpy(zero_copy_only=False)).tolist():
            if int(slots[index]) not in self._errors:
                self._keep(int(slots[index]), errors[index].as_py())

    def among(self, slots: Slots) -> Mask:
        """Return which of n slots have failed."""
        if not self._errors:
            return np.zeros(len(slots), np.bool_)
        return np.isin(slots, np.fromiter(self._errors, np.int32, len(self._errors)))

    def column(self, slots: Slots) -> pa.Array:
        """Return the errors of n slots, in `ERROR_TYPE`; NULL for slots without errors."""
        if not self._errors:
            return pa.nulls(len(slots), ERROR_TYPE)
        errors: list[dict[str, Any] | None] = [self._errors.get(slot) for slot in slots.tolist()]
        return pa.array(errors, ERROR_TYPE)

    def forget(self, slots: Slots) -> None:
        """Clear the failure marks of n slots."""
        if self._errors:
            for slot in slots.tolist():
                self._errors.pop(slot, None)
        if not self._errors:
            self._chars = 0

    def clear(self) -> Slots:
        """Clear all failure marks; return the slots that had failed."""
        slots = np.fromiter(self._errors, np.int32, len(self._errors))
        self._errors, self._chars = {}, 0
        return slots


def _short(text: str | None, chars_max: int) -> str | None:
    if text is None:
        return None
    text = text[: chars_max + 1]  # one more than the limit shows whether it is longer
    # Lone surrogates, which cannot be encoded as UTF-8, would fail in Arrow.
    whole = text.encode(errors="backslashreplace").decode()
    return whole if len(whole) <= chars_max else whole[: chars_max - 3] + "..."


def user_failure(function: str | None, method_name: str, error: BaseException) -> FunctionError:
    """Return the error for an exception in a method of the author, with only the author's frames.

    An exception with a `limit` comes from the server, which has interrupted the method because it exceeded the limit.
    The message is cut here, before logs and frames copy it.
    """
    if _is_java(error):
        return _java_failure(function, method_name, error)
    message = _message_of(error)
    if isinstance(error, ModuleNotFoundError):
        message += f"; {missing_module(error)}"
    return FunctionError(
        "USER_CODE",
        f"{method_name} raised {type(error).__name__}: {message}",
        function=function,
        limit=getattr(error, "limit", None),
        repeats=not isinstance(error, _PASSING) and not hasattr(error, "limit"),
        trace=_trace(error) + str(_short("".join(traceback.format_exception_only(error)), _TEXT_CHARS_MAX)),
    )


def call_if_written(function: str, method_name: str, method: Callable[..., None] | None, *arguments: object) -> None:
    """Call `open` or `close` of the author, if there is one. Raises FunctionError USER_CODE."""
    if method is not None:
        try:
            method(*arguments)
        except (Exception, SystemExit) as error:
            raise user_failure(function, method_name, error) from error


def close_all(closables: Sequence[Any]) -> None:
    """Close all functions. The first error is raised after all have been closed."""
    failures: list[FunctionError] = []
    for each in closables:
        try:
            each.close()
        except FunctionError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _is_java(error: BaseException) -> bool:
    """Return whether an exception was thrown in Java. JPype is not imported here, because it may not be installed."""
    return type(type(error)).__name__ == "_JClass"


def _java_failure(function: str | None, method_name: str, error: Any) -> FunctionError:
    """Return the error for an exception of a Java method, with the author's frames in Java."""
    try:
        message, lines = error.getMessage(), str(error.stacktrace()).splitlines()
    except Exception as another:  # noqa: BLE001 - getMessage is the author's code, too
        message, lines = f"(its getMessage raised {type(another).__name__})", []
    name = type(error).__name__
    stack_frames = [line for line in lines if not line.strip().startswith(_JAVA_BRIDGE)]
    return FunctionError(
        "USER_CODE",
        f"{method_name} raised {name}" + ("" if message is None else f": {_short(str(message), _TEXT_CHARS_MAX)}"),
        function=function,
        repeats=not name.startswith(_JAVA_PASSING),
        trace=str(_short("\n".join(stack_frames[:_JAVA_STACK_FRAMES_MAX]) + "\n", _TEXT_CHARS_MAX)),
    )


def missing_module(error: ModuleNotFoundError) -> str:
    """Return the remedy for a module that is missing in the process that folds functions."""
    module = (error.name or "it").partition(".")[0]
    return (
        f"the module {module} is not installed where functions are folded. In Spark, send it to the workers with "
        f"spark.sparkContext.addPyFile('{module}.py') (a package as a zip file; through Spark Connect "
        "spark.addArtifact(..., pyfile=True)), or install it on each of them; for servers, install it there"
    )


def _message_of(error: BaseException) -> str:
    try:
        return str(_short(str(error), _TEXT_CHARS_MAX))
    except Exception as another:  # noqa: BLE001 - it is the author's code, too
        return f"(its __str__ raised {type(another).__name__})"


def _trace(error: BaseException) -> str:
    """Return the author's frames of a traceback as text. Errors raised at the same place share one text."""
    index, entry = [], error.__traceback__
    while entry is not None:
        index.append((entry.tb_frame.f_code, entry.tb_lasti))
        entry = entry.tb_next
    key = tuple(index)
    text = _traces.get(key)
    if text is None:
        frames = traceback.extract_tb(error.__traceback__)
        stack = [each for each in frames if not each.filename.startswith(_OURS)]
        text = "".join(traceback.format_list(stack[-_STACK_FRAMES_MAX:]))
        if len(_traces) >= _TRACES_MAX:  # the threads of a server share it, so only atomic operations are allowed
            _traces.clear()
        _traces[key] = text
    return text
