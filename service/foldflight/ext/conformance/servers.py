"""Check a server: test the rules of the contract on a running server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.client.flight_errors import translate_error
from foldflight.errors import RejectedError
from foldflight.exchange.encoding import decode_error
from foldflight.ext.conformance import discovery, epoch_rules
from foldflight.ext.conformance.raw import SERVER_CHECKS, BrokenError, NotTriedError, Outcome, RawServer, ServerCheck

# Importing these modules has added their checks to `SERVER_CHECKS`, whose order the table in proto/README.md has.
_MODULES = (discovery, epoch_rules)
SERVER_RULES = tuple(check.rule for check in SERVER_CHECKS)


def check_server(
    url: str,
    *,
    function: str = "sum",
    only: frozenset[str] = frozenset(),
    deadline_s: float = 10.0,
    token: str | None = None,
    tls: Mapping[str, bytes] | None = None,
) -> Iterator[Outcome]:
    """Test the rules of the contract on a server, one after the other.

    Args:
        url: URL of the server: `grpc://host:port` or `grpc+tls://host:port`.
        function: Name of a function of the server with one argument that takes BIGINT. It must give different outputs
            for different rows, as `sum` does. Rules for retractions and merges are tested only if it supports them.
        only: Names of the rules to test. Empty: all.
        deadline_s: Longest wait for one answer.
        token: Bearer token, if the server requires one.
        tls: Certificates, as keyword arguments of pyarrow's FlightClient.

    Yields:
        The outcome of each rule, in the order of `SERVER_RULES`.

    Raises:
        RetryableError: UNREACHABLE or DEADLINE, if the server does not answer.
        RejectedError: UNKNOWN_FUNCTION or SCHEMA_MISMATCH, if the server does not have that function; BAD_FRAME, if it
            does not follow the protocol at all; SIGNATURE for an unknown rule, or a function whose outputs are equal
            for different rows.

    >>> from foldflight import Server
    >>> from foldflight.testing.conformance import check_server
    >>> with Server([]) as server:
    ...     for outcome in check_server(server.url, only=frozenset({"list-functions"})):
    ...         print(outcome.rule.name, outcome.passed)
    list-functions True
    """
    unknown_rules = only - {rule.name for rule in SERVER_RULES}
    if unknown_rules:
        raise RejectedError(
            "SIGNATURE",
            f"there is no rule {', '.join(sorted(unknown_rules))}; the rules are "
            f"{', '.join(rule.name for rule in SERVER_RULES)}",
        )
    server = RawServer(url, function=function, deadline_s=deadline_s, token=token, tls=tls)
    try:
        _check_function(server)
        for check in SERVER_CHECKS:
            if not only or check.rule.name in only:
                yield _outcome(check, server)
    finally:
        server.close()


def _check_function(server: RawServer) -> None:
    """Refuse a function whose outputs are equal for different rows, because no check could fail with it."""
    samples = ([5], [7], [9], [5, 5], [5, 7], [5, 9])
    try:
        outputs = [repr(server.output([(0, 0, value) for value in values])) for values in samples]
    except (fl.FlightError, pa.ArrowException, OSError) as error:
        translated_error = translate_error(error, url=server.url, deadline_s=server.deadline_s)
        raise translated_error from None
    except BrokenError as error:
        raise RejectedError("BAD_FRAME", f"{server.url} does not answer as a foldflight server does: {error}") from None
    if len(set(outputs)) < len(outputs):
        raise RejectedError(
            "SIGNATURE",
            f"{server.function} returns {', '.join(outputs)} for the rows {', '.join(map(str, samples))}; name a "
            "function with different outputs for them, such as a sum",
            function=server.function,
        )


def _outcome(check: ServerCheck, server: RawServer) -> Outcome:
    try:
        check.run(server)
    except NotTriedError as reason:
        return Outcome(check.rule, None, str(reason))
    except BrokenError as rule_error:
        return Outcome(check.rule, False, str(rule_error))
    except (fl.FlightError, pa.ArrowException, OSError) as error:
        decoded_error = decode_error(getattr(error, "extra_info", b"") or b"")
        text = (
            str(error).splitlines()[0][:300]
            if decoded_error is None
            else f"{decoded_error.code}: {decoded_error.message}"
        )
        return Outcome(check.rule, False, f"the server refused a valid request: {text}")
    except Exception as error:  # noqa: BLE001 - the answer of another server may raise anything
        return Outcome(check.rule, False, f"the answer cannot be read: {type(error).__name__}: {error}")
    finally:
        server.hang_up()
    return Outcome(check.rule, True)
