"""What authors' code raises, and the groups that it raised for: set aside until the barrier, while the others go on."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.rows import Mask, Slots

__all__ = ["ERROR", "ERROR_TYPE", "Failures", "missing_module", "user_failure"]

ERROR: Final = "error"
_TEXTS: Final = ("code", "function", "message", "row", "trace")
ERROR_TYPE: Final = pa.struct([pa.field(name, pa.string()) for name in _TEXTS])
# Authors put whole accumulators into their messages; what a million groups say has to fit somewhere. Past the second
# bound, errors come without rows and traces, and with the beginning of their messages.
_TEXT_CHARS_MAX: Final = 4096
_ALL_CHARS_MAX: Final = 64 << 20
_LATE_CHARS_MAX: Final = 80
_OURS: Final = str(Path(__file__).parent.parent) + os.sep
_FRAMES_MAX: Final = 12
# What these tell of may be otherwise in a minute: files, networks (also those of most libraries), memory.
_PASSING: Final = (OSError, MemoryError)
_TRACES_MAX: Final = 64
_traces: Final[dict[tuple[tuple[CodeType, int], ...], str]] = {}


class Failures:
    """The slots that have failed since the last barrier, each with its first error.

    Args:
        isolates: Whether an error of one slot is taken; otherwise none ever is, and it ends the exchange.

    Attributes:
        counts: How many slots have failed so far, by function.
    """

    def __init__(self, *, isolates: bool = False) -> None:
        self.isolates = isolates
        self.counts: Counter[str] = Counter()
        self._takes = isolates
        self._errors: dict[int, dict[str, str | None]] = {}
        self._chars = 0

    def __bool__(self) -> bool:
        """Tell whether any slot has failed."""
        return bool(self._errors)

    def __contains__(self, slot: int) -> bool:
        """Tell whether a slot has failed."""
        return slot in self._errors

    def take(self, error: FunctionError) -> bool:
        """Take an error of one slot; False if it has to be raised: a limit that was passed is not the slot's alone."""
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
    def raised(self) -> Iterator[None]:
        """Let errors be raised for a while: slots that have failed already have, and no other does."""
        self._takes = False
        try:
            yield
        finally:
            self._takes = self.isolates

    def restore(self, slots: Slots, errors: pa.Array) -> None:
        """Take the errors of n slots that failed in another fold; NULL where there is none.

        Raises:
            RejectedError: SCHEMA_MISMATCH, where errors are not isolated, or are none.
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
        for place in np.flatnonzero(errors.is_valid().to_numpy(zero_copy_only=False)).tolist():
            if int(slots[place]) not in self._errors:
                self._keep(int(slots[place]), errors[place].as_py())

    def among(self, slots: Slots) -> Mask:
        """Tell which of n slots have failed."""
        if not self._errors:
            return np.zeros(len(slots), np.bool_)
        return np.isin(slots, np.fromiter(self._errors, np.int32, len(self._errors)))

    def column(self, slots: Slots) -> pa.Array:
        """Return the errors of n slots, in `ERROR_TYPE`; NULL where there is none."""
        if not self._errors:
            return pa.nulls(len(slots), ERROR_TYPE)
        errors: list[dict[str, Any] | None] = [self._errors.get(slot) for slot in slots.tolist()]
        return pa.array(errors, ERROR_TYPE)

    def forget(self, slots: Slots) -> None:
        """Take n slots for sound."""
        if self._errors:
            for slot in slots.tolist():
                self._errors.pop(slot, None)
        if not self._errors:
            self._chars = 0

    def clear(self) -> Slots:
        """Take all slots for sound; return those that had failed."""
        slots = np.fromiter(self._errors, np.int32, len(self._errors))
        self._errors, self._chars = {}, 0
        return slots


def _short(text: str | None, chars_max: int) -> str | None:
    if text is None:
        return None
    text = text[: chars_max + 1]  # enough to see whether it is longer
    # What cannot be UTF-8 (half a surrogate pair in a message) would fail in Arrow.
    whole = text.encode(errors="backslashreplace").decode()
    return whole if len(whole) <= chars_max else whole[: chars_max - 3] + "..."


def user_failure(function: str | None, verb: str, error: BaseException) -> FunctionError:
    """Return the error for an exception in a method of the author, with the author's own frames only.

    An exception that names a `limit` was not the author's: the server has interrupted the method, which passed it. What
    it says is cut here, before logs and frames have copies of it.
    """
    said = _said(error)
    if isinstance(error, ModuleNotFoundError):
        said += f"; {missing_module(error)}"
    return FunctionError(
        "USER_CODE",
        f"{verb} raised {type(error).__name__}: {said}",
        function=function,
        limit=getattr(error, "limit", None),
        repeats=not isinstance(error, _PASSING) and not hasattr(error, "limit"),
        trace=_trace(error) + str(_short("".join(traceback.format_exception_only(error)), _TEXT_CHARS_MAX)),
    )


def missing_module(error: ModuleNotFoundError) -> str:
    """Return what to do about a module that is missing where functions are folded."""
    module = (error.name or "it").partition(".")[0]
    return (
        f"the module {module} is not installed where functions are folded. In Spark, send it to the workers with "
        f"spark.sparkContext.addPyFile('{module}.py') (a package as a zip file; through Spark Connect "
        "spark.addArtifact(..., pyfile=True)), or install it on each of them; for servers, install it there"
    )


def _said(error: BaseException) -> str:
    try:
        return str(_short(str(error), _TEXT_CHARS_MAX))
    except Exception as another:  # noqa: BLE001 - it is the author's code, too
        return f"(its __str__ raised {type(another).__name__})"


def _trace(error: BaseException) -> str:
    """Return the author's frames of a traceback as text; what many groups raise at one place is written once."""
    place, frame = [], error.__traceback__
    while frame is not None:
        place.append((frame.tb_frame.f_code, frame.tb_lasti))
        frame = frame.tb_next
    key = tuple(place)
    text = _traces.get(key)
    if text is None:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_OURS)]
        text = "".join(traceback.format_list(frames[-_FRAMES_MAX:]))
        if len(_traces) >= _TRACES_MAX:  # a server's threads share it: they may only do what is done at once
            _traces.clear()
        _traces[key] = text
    return text
