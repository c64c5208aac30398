"""The errors of foldflight: the class is what the caller does next, the code says why.

| class | the caller |
|---|---|
| `RetryableError` | sends the epoch to another server |
| `RejectedError` | changes the job, the settings or the input |
| `FunctionError` | asks the function's author |
| `CorruptError` | stops: stored or received bytes contradict themselves |
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

__all__ = ["CorruptError", "FoldflightError", "FunctionError", "RejectedError", "RetryableError"]


class FoldflightError(Exception):
    """Base of all errors that foldflight raises on purpose.

    Args:
        code: One of the class's `codes`; stable, for programs.
        message: What was wrong, where, and what to do next; for people.
        function: Name of the function concerned.
        group: The group concerned: a mapping of key column to value where the keys are known.
        slot: The group's slot in its exchange, where the keys are not known (a server sees slots only).
        limit: The bound that was passed, by the setting that names it; known where it is raised, not sent.
        row: The row concerned: argument name to its value as text, plus where it stood.
        trace: The author's own frames of the traceback, innermost last.
        story: The last steps of the exchange, oldest first.
        repeats: Whether the same input would raise it again, so that it need not be tried again. Default: by the code.
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

    def with_group(self, group: dict[str, Any]) -> Self:
        """Return the same error with the group's keys, which only the engine knows."""
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
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.code, self.message, self.__dict__.copy())


def _rebuild(cls: type[FoldflightError], code: str, message: str, attributes: dict[str, Any]) -> FoldflightError:
    error = cls(code, message)
    error.__dict__.update(attributes)
    return error


class RetryableError(FoldflightError):
    """Nothing is wrong with the job: the same epoch may succeed on another server, or later."""

    codes = frozenset({"OVERLOADED", "DRAINING", "UNREACHABLE", "DEADLINE"})


class RejectedError(FoldflightError):
    """The job, its settings or its input must change before it can succeed."""

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
        }
    )
    # The others are about servers, modules and settings, which somebody may be changing at the moment.
    repeating = frozenset({"SIGNATURE", "SCHEMA_MISMATCH", "CANNOT_RETRACT", "CANNOT_MERGE", "STATE_MISMATCH"})


class FunctionError(FoldflightError):
    """The author's code failed, or gave what its declaration rules out."""

    codes = frozenset({"USER_CODE", "RESULT_TYPE", "OVERFLOW"})
    repeating = codes


class CorruptError(FoldflightError):
    """Bytes contradict their checksum, or foldflight contradicts itself: stop and look."""

    codes = frozenset({"STATE_CHECKSUM", "INVARIANT"})
