"""Tokens that rotate and permit some functions, TLS in both directions; refusals name the missing one."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pyarrow.flight as fl
import pytest
import trustme

from foldflight import RejectedError, RetryableError, connect
from foldflight.client import close_connections
from foldflight.client.connect import credentials
from foldflight.functions.query.call import Call
from foldflight.server import rpc_server
from foldflight.server.run.lifecycle import serving
from tests.wire import wire_functions
from tests.wire.kit import DEADLINE_S, PATIENCE_S, STATE_KEY, open_request

COUNT = Call("count", ())
FIRST, SECOND, THIRD = "the first token, long", "the second token, long", "the third token, long"


@pytest.fixture(autouse=True)
def fresh_connections() -> Iterator[None]:
    """Each test uses new connections."""
    yield
    close_connections()


def refusal(url: str, token: str | None, *calls: Call) -> RejectedError:
    """Return the error of a caller without permission."""
    with pytest.raises(RejectedError) as excinfo:
        connect(url, token=token).transport.open(open_request(*calls or (COUNT,)))
    assert excinfo.value.code == "UNAUTHENTICATED"
    return excinfo.value


def test_any_of_the_tokens_opens() -> None:
    """Two tokens are valid at once; without a valid one, nothing is served, not even a list."""
    with serving(wire_functions, state_keys=STATE_KEY, tokens=(FIRST, SECOND)) as server:
        for token in (FIRST, SECOND):
            assert "count" in connect(server.url, token=token)
        for token, problem in ((None, "no token"), (THIRD, "wrong"), (FIRST[:-1], "wrong"), ("", "wrong")):
            assert problem in refusal(server.url, token).message


def test_the_version_of_external_functions_needs_no_token_and_no_thread() -> None:
    """RisingWave asks for it without a token, and reads the first answer only. Other actions need a token.

    The call sends no message, so that it would have to wait if the server read one.
    """
    path, silence, started_threads = "/arrow.flight.protocol.FlightService/DoAction", threading.Event(), []

    def silent() -> Iterator[bytes]:
        silence.wait(PATIENCE_S)
        yield from ()

    with (
        serving(wire_functions, state_keys=STATE_KEY, tokens=(FIRST,)) as server,
        pytest.MonkeyPatch.context() as patch,
        grpc.insecure_channel(server.url.removeprefix("grpc://")) as channel,
        fl.connect(server.url) as client,
    ):
        patch.setattr(
            rpc_server.IncomingCall, "receive", lambda _call: started_threads.append(threading.current_thread().name)
        )
        answers = channel.stream_stream(path)(silent(), timeout=PATIENCE_S)
        assert next(answers) == b"\x0a\x01\x02", "arrow.flight.protocol.Result with the body 0x02"
        with pytest.raises(grpc.RpcError) as excinfo:
            next(answers)
        silence.set()
        assert excinfo.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert next(client.do_action("protocol_version")).body.to_pybytes() == b"\x02"
        with pytest.raises(fl.FlightUnauthenticatedError, match="the call has no token"):
            list(client.do_action("status"))
        assert not started_threads
        patch.undo()
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {FIRST}".encode())])
        assert [answer.body.to_pybytes() for answer in client.do_action("protocol_version", options)] == [b"\x02"]


def test_tokens_of_a_file_can_be_rotated(tmp_path: Path) -> None:
    """A changed file applies to the next call; an unreadable one changes nothing and is logged once."""
    path = tmp_path / "tokens"
    path.write_text(f"# callers\n{FIRST.replace(' ', '')}\n\n{SECOND.replace(' ', '')} count, wei*\n")
    log = io.StringIO()
    with serving(wire_functions, state_keys=STATE_KEY, tokens_file=str(path), log_stream=log) as server:
        connect(server.url, token=FIRST.replace(" ", ""))
        path.write_text(f"{THIRD.replace(' ', '')}\n")
        os.utime(path, (1, 1))
        refusal(server.url, FIRST.replace(" ", ""))
        connect(server.url, token=THIRD.replace(" ", ""))
        path.write_text("short\n")
        os.utime(path, (2, 2))
        for _ in range(3):
            connect(server.url, token=THIRD.replace(" ", ""))
        path.unlink()
        connect(server.url, token=THIRD.replace(" ", ""))
    assert log.getvalue().count("shorter than 16 bytes") == 1
    assert "short\\n" not in log.getvalue()


def test_a_change_is_noticed_whatever_its_date(tmp_path: Path) -> None:
    """A file of the same size and modification time that replaces the old one is read, too."""
    path = tmp_path / "tokens"
    path.write_text("a-token-of-old-times\n")
    dates = path.stat().st_atime_ns, path.stat().st_mtime_ns
    with serving(wire_functions, state_keys=STATE_KEY, tokens_file=str(path)) as server:
        connect(server.url, token="a-token-of-old-times")
        path.write_text("a-token-of-new-times\n")
        os.utime(path, ns=dates)
        connect(server.url, token="a-token-of-new-times")
        refusal(server.url, "a-token-of-old-times")


def test_a_token_opens_its_functions(tmp_path: Path) -> None:
    """A token with names permits only these functions: others are not listed, described or folded."""
    path = tmp_path / "tokens"
    path.write_text("a-token-for-some-of-all count,wei*\n")
    with serving(wire_functions, state_keys=STATE_KEY, tokens_file=str(path)) as server:
        functions = connect(server.url, token="a-token-for-some-of-all")
        assert set(functions) == {"count", "weighted_avg"}
        functions.transport.open(open_request(COUNT)).close()
        error = refusal(server.url, "a-token-for-some-of-all", COUNT, Call("sum", ("value",)))
        assert (error.function, "does not permit sum" in error.message) == ("sum", True)
        with pytest.raises(RejectedError, match="does not permit sum"):
            functions.transport.describe(open_request(Call("sum", ("value",))))


def test_an_unknown_function_lists_what_the_token_opens(tmp_path: Path) -> None:
    """An error about a name that the token permits, and no function has, names no function of others."""
    path = tmp_path / "tokens"
    path.write_text("a-token-for-some-of-all count,team_*\n")
    with serving(wire_functions, state_keys=STATE_KEY, tokens_file=str(path)) as server:
        transport = connect(server.url, token="a-token-for-some-of-all", patience_s=0).transport
        for ask in (transport.open, transport.describe):
            with pytest.raises(RejectedError) as excinfo:
                ask(open_request(Call("team_unknown")))
            assert excinfo.value.code == "UNKNOWN_FUNCTION"
            assert excinfo.value.message.endswith("; there are count")


@pytest.mark.parametrize("names", ["count,wei*", "count, wei*", "count wei*", "\tcount\twei*", " count ,\twei* ,"])
def test_functions_of_a_token_may_be_written_as_one_likes(tmp_path: Path, names: str) -> None:
    """Any number of commas, spaces and tabs separates the functions of a token."""
    path = tmp_path / "tokens"
    path.write_text(f"a-token-for-some-of-all {names}\n")
    with serving(wire_functions, state_keys=STATE_KEY, tokens_file=str(path)) as server:
        assert set(connect(server.url, token="a-token-for-some-of-all")) == {"count", "weighted_avg"}


def test_names_that_no_function_has_are_reported(tmp_path: Path) -> None:
    """A misspelled name permits nothing: the log names it at the start and after a change."""
    path = tmp_path / "tokens"
    path.write_text("a-token-for-some-of-all count weihgted_avg nope*\n")
    log = io.StringIO()
    with serving(wire_functions, state_keys=STATE_KEY, tokens_file=str(path), log_stream=log) as server:
        (line,) = [each for each in log_lines(log) if each["level"] == "warning"]
        assert (line["names"], line["path"]) == (["nope*", "weihgted_avg"], str(path))
        path.write_text("a-token-for-some-of-all count, sums\n")
        connect(server.url, token="a-token-for-some-of-all")
        assert [each["names"] for each in log_lines(log) if "names" in each][1:] == [["sums"]]
        path.write_text("a-token-for-some-of-all count\n")
        connect(server.url, token="a-token-for-some-of-all")
        assert len([each for each in log_lines(log) if "names" in each]) == 2


def test_names_of_functions_that_engines_ship_are_not_reported(tmp_path: Path) -> None:
    """If engines may ship functions, a token may name one that does not exist yet."""
    path = tmp_path / "tokens"
    path.write_text("a-token-for-some-of-all shipped_one_day\n")
    log = io.StringIO()
    keys = {"tokens_file": str(path), "bundle_keys": ("a bundle key, long enough",)}
    with serving(wire_functions, state_keys=STATE_KEY, log_stream=log, **keys):
        assert not [each for each in log_lines(log) if each["level"] == "warning"]


def log_lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.mark.parametrize("content", ["a-token-that-names-nothing , ,", None, "", "# nobody\n", "short\n", b"\xff\xfe"])
def test_a_bad_tokens_file_stops_the_start(tmp_path: Path, content: str | bytes | None) -> None:
    """A server with an empty or invalid tokens file does not start."""
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with (
        pytest.raises(RejectedError, match="tokens") as excinfo,
        serving(wire_functions, state_keys=STATE_KEY, tokens_file=str(path)),
    ):
        pass
    assert excinfo.value.code == "SETTINGS"


@dataclass(frozen=True)
class Certificates:
    """Files of an authority, a server and a client."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str
    client_key: str


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """A new authority that has signed certificates for 127.0.0.1 and for one client."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, certificate in (
        ("server", authority.issue_cert("127.0.0.1", "localhost")),
        ("client", authority.issue_cert("engine@example.org")),
    ):
        certificate.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(str(tmp_path / f"{name}.pem"), append=True)
    names = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    return Certificates(*(str(tmp_path / name) for name in names))


def test_tls_needs_the_certificate_of_the_authority(certificates: Certificates) -> None:
    """A client with the authority's certificate is served; without it, or without TLS, it is not."""
    tls = {"tls_cert_file": certificates.server_cert, "tls_key_file": certificates.server_key}
    with serving(wire_functions, state_keys=STATE_KEY, tokens=(FIRST,), **tls) as server:
        assert server.url.startswith("grpc+tls://")
        functions = connect(server.url, tls_ca=certificates.ca, token=FIRST)
        functions.transport.open(open_request(COUNT)).close()
        with pytest.raises(RetryableError) as excinfo:
            connect(server.url, deadline_s=DEADLINE_S, token=FIRST)
        assert excinfo.value.code in ("UNREACHABLE", "DEADLINE")
        assert "name the authority's certificates with tls_ca=..." in excinfo.value.message
        with pytest.raises(RetryableError, match=r"write grpc\+tls://"):
            connect(server.url.replace("grpc+tls", "grpc"), deadline_s=DEADLINE_S, token=FIRST)


def test_a_client_without_a_required_certificate_is_refused(certificates: Certificates) -> None:
    """If client certificates are required, a client without one is refused."""
    tls = {
        "tls_cert_file": certificates.server_cert,
        "tls_key_file": certificates.server_key,
        "tls_client_ca_file": certificates.ca,
    }
    with serving(wire_functions, state_keys=STATE_KEY, **tls) as server:
        known_values = {"tls_cert": certificates.client_cert, "tls_key": certificates.client_key}
        connect(server.url, tls_ca=certificates.ca, **known_values).transport.open(open_request(COUNT)).close()
        with pytest.raises(RetryableError, match="give tls_cert="):
            connect(server.url, tls_ca=certificates.ca, deadline_s=DEADLINE_S)


def test_certificates_that_tls_cannot_use_are_named(certificates: Certificates, tmp_path: Path) -> None:
    """A file without certificates, and a key of another certificate, are refused before anything is sent."""
    empty = tmp_path / "empty.pem"
    empty.touch()
    url = "grpc+tls://127.0.0.1:1"
    for authority in (str(empty), certificates.server_key):
        with pytest.raises(RejectedError, match=f"tls_ca {authority} has no certificate in PEM format") as excinfo:
            connect(url, tls_ca=authority)
        assert excinfo.value.code == "SETTINGS"
    with pytest.raises(
        RejectedError, match=f"in tls_cert {certificates.client_cert} with the key in tls_key"
    ) as excinfo:
        connect(url, tls_ca=certificates.ca, tls_cert=certificates.client_cert, tls_key=certificates.server_key)
    assert excinfo.value.code == "SETTINGS"


@pytest.mark.parametrize("token", ["a token with a line break\n", b"a token of bytes", "a token with ü"])
def test_a_token_that_cannot_be_sent_is_refused(token: Any) -> None:
    """GRPC would say of the text of a file, which ends with a line break, that metadata are invalid."""
    for ask in (connect, lambda url, token: credentials([url], token=token)):
        with pytest.raises(RejectedError, match="printable ASCII characters; of a file's text remove") as excinfo:
            ask("grpc://127.0.0.1:1", token=token)
        assert excinfo.value.code == "SIGNATURE"


def test_a_certificate_for_another_name_is_explained(certificates: Certificates) -> None:
    """A client that connects by a name that the certificate does not have is told so."""
    tls = {"tls_cert_file": certificates.client_cert, "tls_key_file": certificates.client_key}
    with (
        serving(wire_functions, state_keys=STATE_KEY, **tls) as server,
        pytest.raises(RetryableError, match="the server's certificate is for other names"),
    ):
        connect(server.url, tls_ca=certificates.ca, deadline_s=DEADLINE_S)


def test_tls_settings_belong_together(certificates: Certificates, tmp_path: Path) -> None:
    """A missing half of a pair, a missing file and an invalid PEM are reported at the start of server or client."""
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("hello")
    pair = {"tls_cert_file": certificates.server_cert, "tls_key_file": certificates.server_key}
    for settings, problem in (
        ({"tls_cert_file": certificates.server_cert}, "tls_key_file"),
        ({"tls_client_ca_file": certificates.ca}, "tls_cert_file"),
        ({"tls_cert_file": str(tmp_path / "none"), "tls_key_file": certificates.server_key}, "cannot read"),
        ({"tls_cert_file": str(no_pem), "tls_key_file": certificates.server_key}, "not PEM"),
        ({"tls_cert_file": certificates.server_cert, "tls_key_file": certificates.client_key}, "does not belong to"),
        (
            {"tls_cert_file": certificates.server_cert, "tls_key_file": certificates.ca},
            "TLS cannot use the certificate",
        ),
        ({**pair, "tls_client_ca_file": certificates.server_key}, "TLS cannot use the certificates in tls_client_ca"),
    ):
        with (
            pytest.raises(RejectedError, match=problem) as excinfo,
            serving(wire_functions, state_keys=STATE_KEY, **settings),
        ):
            pass
        assert excinfo.value.code == "SETTINGS"
    with pytest.raises(RejectedError, match=r"grpc\+tls"):
        connect("grpc://127.0.0.1:1", tls_ca=certificates.ca)
    with pytest.raises(RejectedError, match="give both or neither"):
        connect("grpc+tls://127.0.0.1:1", tls_cert=certificates.client_cert)
    with pytest.raises(RejectedError, match="cannot read"):
        connect("grpc+tls://127.0.0.1:1", tls_ca=str(tmp_path / "none"))
