"""The errors of foldflight: the class tells the caller what to do next, and the code tells why.

| class | the caller |
|---|---|
| `RetryableError` | sends the epoch to another server |
| `RejectedError` | changes the job, the settings or the input |
| `FunctionError` | asks the author of the function |
| `CorruptError` | stops, because stored or received bytes are damaged |

The text of an error ends with the place of its code in the reference, docs/reference/errors.md, which `make reference`
writes from `EXPLANATIONS`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, NamedTuple, Self

__all__ = [
    "EXPLANATIONS",
    "CorruptError",
    "Explanation",
    "FoldflightError",
    "FunctionError",
    "RejectedError",
    "RetryableError",
    "pointer",
]


class Explanation(NamedTuple):
    """What the reference says about a code.

    Args:
        meaning: What has happened.
        remedy: What to do about it.
    """

    meaning: str
    remedy: str


EXPLANATIONS: Final = {
    "OVERLOADED": Explanation(
        "A server is full: it has `exchanges_max` open exchanges, or its memory is nearly used up. Engines try other "
        "servers by themselves, so a job gets this error only if all servers were full for as long as the client "
        "tried.",
        "Add servers. If they have memory to spare, raise `exchanges_max`. If not, raise `memory_limit`, or give each "
        "task of the query fewer groups (more shuffle partitions).",
    ),
    "DRAINING": Explanation(
        "A server is shutting down and accepts no new exchange. Engines continue on another server by themselves.",
        "Start another server before one is stopped. If the whole fleet was stopped, start it and run the job again.",
    ),
    "UNREACHABLE": Explanation(
        "No server answers at the URL, or a connection was lost and no other server took over in time. Or a table that "
        "a stream writes is not available.",
        "Check host, port and scheme of the URL (`grpc://` or `grpc+tls://`), the network policy and the log of the "
        "servers. `foldflight status URL` shows which servers answer.",
    ),
    "DEADLINE": Explanation(
        "A server did not answer within `deadline_s`, or it ended an exchange whose engine was silent for "
        "`idle_s_max`.",
        "Look for a function that takes long for one chunk, and for servers without CPU time. If the function needs "
        "the time, raise `deadline_s` of `connect`, and `fold_s_max` of the servers to less than that. If the engine "
        "was idle, raise `idle_s_max`.",
    ),
    "UNKNOWN_FUNCTION": Explanation(
        "The module, the server or the SQL session has no function of this name. The message lists the names that are "
        "known.",
        "Correct the name, load the module (`foldflight serve MODULE`, or `connect('embedded:MODULE')`), or register "
        "the function in the SQL session.",
    ),
    "SIGNATURE": Explanation(
        "A declaration or a use does not fit: the number or names of arguments, their types, an option, the methods "
        "of a class, or a statement.",
        "Change the declaration or the call as the message says. `foldflight functions TARGET` shows the signatures.",
    ),
    "SCHEMA_MISMATCH": Explanation(
        "The columns of the data differ from the declared or announced ones in number, name or type.",
        "Cast the column to the type that the message names. An engine of your own must send the schema that its "
        "`Open` has.",
    ),
    "CANNOT_RETRACT": Explanation(
        "The input retracts rows, but a function of the query has no `retract`. In strict mode: a row is "
        "retracted from a group that has no row left.",
        "Define `retract`, pass `materialize=True` so that groups keep their rows, or aggregate without `row_kind`. "
        "In strict mode, correct the input.",
    ),
    "CANNOT_MERGE": Explanation(
        "Two states of one group meet, but the function has no `merge`.",
        "Define `merge`, or pass `materialize=True` so that groups keep their rows. In a stream, use other windows "
        "than sessions.",
    ),
    "STATE_MISMATCH": Explanation(
        "Stored states do not belong to this function: name, version, types of arguments or result, codec, direct "
        "arguments or signing key differ.",
        "If the function has changed, raise its version and define `migrate` for states of the older one, or run the "
        "version that wrote them. If types or direct arguments of the query have changed, set them back or begin "
        "with an empty checkpoint. For pickled states, give all servers the same `state_keys`.",
    ),
    "BAD_FRAME": Explanation(
        "A message is not valid: it has no frame of the protocol, its Arrow data are damaged, or the protocol does "
        "not allow the frame at this place.",
        "Check that the address is that of a foldflight server and that no proxy changes the stream. Test an engine "
        "of your own with `foldflight conform engine`.",
    ),
    "PROTOCOL_VERSION": Explanation(
        "Engine and server use different versions of the protocol.",
        "Install a release of foldflight on both sides that has the same version of the protocol.",
    ),
    "UNAUTHENTICATED": Explanation(
        "The server requires a token, and the call has none, a wrong one, or one that does not permit the function. Or "
        "the database of a table that a stream writes does not let the user in.",
        "Pass `token=...` to `connect`, or set FOLDFLIGHT_CLIENT_TOKEN for commands. The operator lists the permitted "
        "functions of a token in the tokens file. For a database, correct user and password of the target's URL.",
    ),
    "LIMIT": Explanation(
        "Something exceeds a bound of the server: the size of a message or state, the states of an exchange, its "
        "slots, or memory.",
        "The message names the bound. Find out why a state is so large, or give each task fewer groups (more shuffle "
        "partitions). Otherwise raise the setting on all servers.",
    ),
    "SETTINGS": Explanation(
        "A setting of a server, a session or a command is missing, unknown or not allowed.",
        "Change the setting that the message names. `foldflight.spark.configure(spark)` sets what a Spark session "
        "needs.",
    ),
    "MODULE": Explanation(
        "A module, or the code of a shipped function, cannot be loaded or does not contain what was asked for.",
        "Correct the exception that the message shows. Install the same versions of packages on both sides, and put "
        "the module where the process can import it.",
    ),
    "USER_CODE": Explanation(
        "A method of the function raised an exception, or was interrupted after `fold_s_max` seconds. The lines below "
        "the message name function, group, row and trace.",
        "Correct the function for the row that is shown. To let the other groups finish, use `on_error='isolate'`.",
    ),
    "RESULT_TYPE": Explanation(
        "A method returned a value that its declaration does not allow, or an accumulator that cannot be stored.",
        "Return the declared type, or declare the type that is returned.",
    ),
    "OVERFLOW": Explanation(
        "A result or a state is outside the range of its declared type, or an argument outside that of a DECIMAL. "
        "(Other columns that do not fit are refused when a query is built.) Numbers are never wrapped around, and a "
        "finite one never becomes infinite. (A fraction is within the range: as Spark's CAST does, BIGINT makes 18 of "
        "18.5.)",
        "Declare a wider type: BIGINT in place of INT, DECIMAL(38, 0) in place of BIGINT, DOUBLE in place of FLOAT. "
        'In a state, at the attribute: `total: Annotated[Decimal, "DECIMAL(38, 0)"]` in place of `total: int`.',
    ),
    "STATE_CHECKSUM": Explanation(
        "The bytes of a state do not match their checksum.",
        "Restore the checkpoint from a copy, or start from an empty one. Look for damaged disks and for programs that "
        "write into the checkpoint.",
    ),
    "INVARIANT": Explanation(
        "foldflight found its own data in a condition that must not occur.",
        "This is a fault of foldflight or of the storage. Keep the log and the checkpoint, and report the fault with "
        "the text of the error.",
    ),
}


def pointer(code: str) -> str:
    """Return the last line of an error's text: where the reference explains the code."""
    return f"  (see docs: errors#{code.lower()})"


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
        return _rebuild, (type(self), self.code, self.message, self.__dict__.copy())


def _rebuild(cls: type[FoldflightError], code: str, message: str, attributes: dict[str, Any]) -> FoldflightError:
    error = cls(code, message)
    error.__dict__.update(attributes)
    return error


class RetryableError(FoldflightError):
    """The job is correct: the same epoch may succeed on another server, or later."""

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
    # The other codes may concern one server, its modules, keys or versions: the next attempt may meet another server.
    repeating = frozenset({"SIGNATURE", "CANNOT_RETRACT", "CANNOT_MERGE"})


class FunctionError(FoldflightError):
    """The author's code raised an exception or returned a value that its declaration does not allow."""

    codes = frozenset({"USER_CODE", "RESULT_TYPE", "OVERFLOW"})
    repeating = codes


class CorruptError(FoldflightError):
    """Bytes do not match their checksum, or foldflight violated an invariant of its own: stop and investigate."""

    codes = frozenset({"STATE_CHECKSUM", "INVARIANT"})
