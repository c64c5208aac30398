"""What the reference of errors says about each code."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["EXPLANATIONS", "Explanation"]


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
        "retracted from a group that has no row left, or that had none before the epoch and accumulates no equal one.",
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
        "arguments or signing key differ. Or a checkpoint was moved, copied or restored elsewhere.",
        "If the function has changed, raise its version and define `migrate` for states of the older one, or run the "
        "version that wrote them. If types or direct arguments of the query have changed, set them back or begin "
        "with an empty checkpoint. For pickled states, give all servers the same `state_keys`. For a checkpoint in "
        "another folder than before, call `foldflight.spark.upgrade_checkpoint` once.",
    ),
    "BAD_FRAME": Explanation(
        "A message is not valid: it has no frame of the protocol, its Arrow data are damaged, or the protocol does "
        "not allow the frame at this place.",
        "Check that the address belongs to a foldflight server and that no proxy changes the stream. Test an engine "
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
        "slots, or memory. Or a column of texts, bytes or lists exceeds the 2 GiB of Arrow, which no setting raises.",
        "The message names the bound. Find out why a state is so large, or give each task fewer groups (more shuffle "
        "partitions, buckets or epochs), or keep entries in [views](../how-to/keep-large-states.md). Otherwise raise "
        "the setting on all servers.",
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
    "SOURCE_FILE": Explanation(
        "A file of a `scan` was replaced after the query was planned, or is damaged.",
        "Make the scan again, which lists the files anew. If the file is damaged, `scan(...).df` tells what Spark "
        "makes of it.",
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
        "A result or a state is outside the range of its declared type, or an argument outside the range of a DECIMAL, "
        "or an argument is no VECTOR of its type: a list of another length, or with a NULL item. "
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
