"""The errors of foldflight: the class tells the caller what to do next, and the code tells why.

| class | the caller |
|---|---|
| `RetryableError` | sends the epoch to another server |
| `RejectedError` | changes the job, the settings or the input |
| `FunctionError` | asks the author of the function |
| `CorruptError` | stops, because stored or received bytes are damaged |

The text of an error ends with the place of its code in the reference, docs/reference/errors.md, which `make reference`
writes from `docs/explanations.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


def pointer(code: str) -> str:
    """Return the last line of an error's text: where the reference explains the code."""
    return f"  (see docs/reference/errors.md#{code.lower()})"


class FoldflightError(Exception):
    """Base class of all errors that foldflight raises deliberately.

    Args:
        code: One of the `codes` of the class. Codes are stable, so programs may depend on them.
        message: Text for people: what was wrong, where, and what to do next.
        function: Name of the function concerned.
        group: The group concerned, as a mapping of key column to value. None where the keys are not known.
        slot: The slot of the group in its exchange. A server knows only slots, not keys.
        limit: Name of the setting whose bound was exceeded. It is not sent over the wire.
        row: Text of the row concerned: argument names with their values, and the position of the row.
        trace: The traceback, reduced to the frames of the author's code, innermost last.
        story: The last steps of the exchange, oldest first.
        repeats: Whether the same input raises the error again, so that a retry is useless. None: the code decides.
        recorded: Where the exchange is recorded, and how to replay it.

    >>> from foldflight import FoldflightError, connect
    >>> try:
    ...     connect("embedded:no_such_module")
    ... except FoldflightError as error:
    ...     print(type(error).__name__, error.code)
    RejectedError MODULE
    """

    codes: ClassVar[frozenset[str]] = frozenset()
    repeating: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        code: str,
        message: str,
        *,
        function: str | None = None,
        group: dict[str, Any] | None = None,
        slot: int | None = None,
        limit: str | None = None,
        row: str | None = None,
        trace: str | None = None,
        story: tuple[str, ...] = (),
        repeats: bool | None = None,
        recorded: str | None = None,
    ) -> None:
        if code not in self.codes:
            raise AssertionError(f"{type(self).__name__} has no code {code!r}; it has {sorted(self.codes)}")
        super().__init__(message)
        self.code = code
        self.message = message
        self.function = function
        self.group = group
        self.slot = slot
        self.limit = limit
        self.row = row
        self.trace = trace
        self.story = story
        self.repeats = code in self.repeating if repeats is None else repeats
        self.recorded = recorded

    def with_group(self, group: dict[str, Any]) -> Self:
        """Return a copy of this error that names the keys of the group. Only the engine knows them."""
        return type(self)(
            self.code,
            self.message,
            function=self.function,
            group=group,
            slot=self.slot,
            limit=self.limit,
            row=self.row,
            trace=self.trace,
            story=self.story,
            repeats=self.repeats,
            recorded=self.recorded,
        )

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}"]
        if self.function is not None:
            lines.append(f"  function: {self.function}")
        if self.group is not None:
            lines.append(
                "  group: " + (", ".join(f"{key}={value!r}" for key, value in self.group.items()) or "(all rows)")
            )
        elif self.slot is not None:
            lines.append(f"  group: slot {self.slot}")
        if self.row is not None:
            lines.append(f"  row: {self.row}")
        if self.trace is not None:
            lines.append("  trace of the function:")
            lines.extend(f"    {line}" for line in self.trace.rstrip().splitlines())
        if self.story:
            lines.append("  story: " + " > ".join(self.story))
        if self.recorded is not None:
            lines.append(f"  recorded: {self.recorded}")
        lines.append(pointer(self.code))
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # Classes of other modules are made of other arguments.
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(cls: type[FoldflightError], message: str, attributes: dict[str, Any]) -> FoldflightError:
    error = cls.__new__(cls, message)
    error.__dict__.update(attributes)
    return error


class RetryableError(FoldflightError):
    """The job is correct: the same epoch may succeed on another server, or later.

    >>> from foldflight import RetryableError, connect
    >>> try:
    ...     connect("grpc://127.0.0.1:1")
    ... except RetryableError as error:
    ...     print(error.code)
    UNREACHABLE
    """

    codes = frozenset({"OVERLOADED", "DRAINING", "UNREACHABLE", "DEADLINE"})


class RejectedError(FoldflightError):
    """The job, its settings or its input must change before it can succeed.

    >>> from foldflight import RejectedError, connect
    >>> try:
    ...     connect("embedded:")["summ"]
    ... except RejectedError as error:
    ...     print(error)
    UNKNOWN_FUNCTION: there is no function 'summ' here; did you mean sum?
      function: summ
      (see docs/reference/errors.md#unknown_function)
    """

    codes = frozenset(
        {
            "UNKNOWN_FUNCTION",
            "SIGNATURE",
            "SCHEMA_MISMATCH",
            "CANNOT_RETRACT",
            "CANNOT_MERGE",
            "STATE_MISMATCH",
            "BAD_FRAME",
            "PROTOCOL_VERSION",
            "UNAUTHENTICATED",
            "LIMIT",
            "SETTINGS",
            "MODULE",
            "SOURCE_FILE",
        }
    )
    # The other codes may concern one server, its modules, keys or versions: the next attempt may meet another server.
    repeating = frozenset({"SIGNATURE", "CANNOT_RETRACT", "CANNOT_MERGE"})


class FunctionError(FoldflightError):
    """The author's code raised an exception or returned a value that its declaration does not allow.

    >>> from foldflight import FunctionError, connect
    >>> from foldflight.testing import run_epochs
    >>> try:
    ...     run_epochs({"total": connect("embedded:")["sum"]("v")}, [[{"v": 2**62}, {"v": 2**62}]])
    ... except FunctionError as error:
    ...     print(error.code, error.function)
    OVERFLOW sum
    """

    codes = frozenset({"USER_CODE", "RESULT_TYPE", "OVERFLOW"})
    repeating = codes


class CorruptError(FoldflightError):
    """Bytes do not match their checksum, or foldflight violated an invariant of its own: stop and investigate."""

    codes = frozenset({"STATE_CHECKSUM", "INVARIANT"})
