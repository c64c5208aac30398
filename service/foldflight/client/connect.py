"""`connect`: get functions, embedded or from servers at their URLs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from foldflight.client.embedded_transport import EmbeddedTransport
from foldflight.client.exchange import PROGRAMS
from foldflight.client.functions import Functions
from foldflight.errors import RejectedError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.fold.pickles import STATE_KEY_BYTES_MIN
from foldflight.functions.registry import Registry, java_functions
from foldflight.recording import RECORDING, Recordings
from foldflight.shipping.bundles import BUNDLE_KEY_BYTES_MIN
from foldflight.tracing import check_endpoint, tracer_of

if TYPE_CHECKING:
    from foldflight.client.flight_transport import FlightTransport


_SCHEMES = frozenset({"grpc", "grpc+tls"})


def server_urls(target: str) -> tuple[str, ...]:
    """Parse URLs of servers, separated by commas.

    Raises:
        RejectedError: SIGNATURE if there is none, or one is not `grpc://host:port` or `grpc+tls://host:port`.
    """
    urls = [url for url in target.split(",") if url.strip()]
    return tuple(server_url(url) for url in urls or (target,))


def server_url(url: str) -> str:
    """Check the URL of one server, and return it without surrounding spaces. Raises RejectedError SIGNATURE."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or "," in url:
        remedy = ""
        if url.startswith(("http://", "https://")):
            remedy = (
                "; HTTP has the status page and metrics of a server (setting http_port, 8817 by default), and clients "
                "call it by Arrow Flight (setting port: --port or FOLDFLIGHT_PORT, 8815 by default)"
            )
        raise RejectedError(
            "SIGNATURE",
            f'{url!r} is not the URL of a server; give "grpc://host:port" or "grpc+tls://host:port"{remedy}',
        )
    return url


EMBEDDED = "embedded:"
_DEADLINE_S = 60.0
_PATIENCE_S = 60.0
# Default key. It must be constant, because a restarted stream reads old states. It detects damage, not forgery.
NO_STATE_KEY = b"foldflight: no state key was given"


def connect(
    target: object,
    *others: object,
    deadline_s: float = _DEADLINE_S,
    patience_s: float = _PATIENCE_S,
    job_parameters: Mapping[str, str] | None = None,
    state_key: bytes | None = None,
    java: Sequence[str] = (),
    token: str | None = None,
    bundle_key: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    otlp_endpoint: str | None = None,
    record: Recordings | None = None,
    strict: bool = False,
) -> Functions:
    """Get the functions of modules and classes, or of servers.

    Args:
        target: The source of the functions.
            `"embedded:examples.weighted_avg"` (several modules are separated by commas), a class or function under
            `@udaf`, `@udf` or `@udtf`, a module, or several of these: they run in the calling process or in the workers
            of the engine.
            `"grpc://host:port"`, or `"grpc+tls://host:port"` with TLS (several servers are separated by commas): Flight
            servers fold them, in turns.
        others: Refused: several sources are one list.
        deadline_s: Longest wait for a server at any one step, in seconds. A server that takes longer counts as lost. It
            must exceed the time that a function needs for one chunk.
        patience_s: Time for which the planning of a query, or an exchange that lost its server, looks for a server that
            answers, in seconds. After it, the RetryableError of the last server is raised. `connect` itself asks each
            server once.
        job_parameters: Values of `FunctionContext.job_parameters`.
        state_key: Signs the pickled states of embedded functions. Only states that were signed with this key are
            unpickled. Without a key, anyone who can write to the checkpoint of a stream can make the query execute
            code. A stream needs the same key after a restart.
        java: Aggregate functions in Java, as `"functions.jar::com.acme.WeightedAvg"`: the path of a jar and the name of
            a public class in it. They are added to the functions of `target`, and sent to servers as by `register`.
            Needs `pip install 'foldflight[java-functions]'` here and where the functions are folded.
        token: The bearer token, if servers require one.
        bundle_key: Signs functions on `register`, for servers with the same key. The key stays in this process; workers
            of the engine get the signed functions.
        tls_ca: PEM file with the CA certificates that sign server certificates. Default: the system's certificates.
        tls_cert: PEM file with the certificate of this client, if servers require one.
        tls_key: PEM file with the key of that certificate. The files are read immediately, so workers do not need them.
        otlp_endpoint: URL of a collector that takes OTLP over HTTP, such as `http://collector:4318`: queries, tasks and
            exchanges send spans of OpenTelemetry there. It must be reachable from the workers of the engine. Needs `pip
            install 'foldflight[otel]'` here and on the workers. Default: nothing of OpenTelemetry is imported.
        record: Records exchanges of embedded functions, to replay them later: `Recordings("recordings")` those in which
            a function raises. Servers record with `foldflight serve --record DIR`.
        strict: Whether servers are refused that have other code of a function than the first one that answered, though
            its version is the same. Default: they are used, with a warning that names both, as a rolling deployment
            needs.

    Returns:
        Functions: The functions by name, as `connect(...)["weighted_avg"]` or `connect(...).weighted_avg`. If there is
            exactly one besides the built-in ones, the result can be called: `connect(WeightedAvg)("value", "weight")`.

    Raises:
        RetryableError: UNREACHABLE or DEADLINE if no server answers.
        RejectedError: MODULE if a module cannot be imported, a jar cannot be read or a Java class cannot be loaded, or
            if the packages that reach servers or of OpenTelemetry are missing here or too old;
            SIGNATURE for a bad target, a Java class that is not a function, or if an embedded function is declared
            `compile=True` and cannot be compiled, or for a token that cannot be sent; SETTINGS if a file cannot be read
            or has no such certificate or key; UNAUTHENTICATED; STATE_MISMATCH, if `strict`, for servers with different
            code of one function.

    >>> connect("embedded:")["count"]().function.signature
    'count([value]) -> BIGINT'
    """
    if others:
        raise RejectedError(
            "SIGNATURE",
            f"connect takes one target, and {len(others) + 1} are given; write several sources of functions as a list, "
            'connect(["examples.weighted_avg", Median]) or "embedded:a,b", and servers as "grpc://one:8815,grpc://two:8815"',
        )
    if otlp_endpoint is not None:
        _check_traces(otlp_endpoint)
    if isinstance(target, str) and not target.startswith(EMBEDDED):
        try:
            urls = server_urls(target)
        except RejectedError as error:
            raise RejectedError(
                error.code,
                f"cannot connect to {target!r}: {error.message}; to fold in this process, give "
                '"embedded:module" or a class decorated with @udaf',
            ) from None
        if state_key is not None:
            raise RejectedError(
                "SIGNATURE", "state_key is for embedded functions only; remove it: servers have their own state keys"
            )
        if record is not None:
            raise RejectedError(
                "SIGNATURE", "record is for embedded functions only; start the servers with `--record DIR` instead"
            )
        transport_class = _flight_transport(target)
        functions = Functions(
            transport_class(
                urls,
                deadline_s=deadline_s,
                bounds=FailoverBounds(patience_s=patience_s),
                **credentials(urls, token=token, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key),
                job_parameters=job_parameters,
                bundle_key=_bundle_key(bundle_key),
                otlp_endpoint=otlp_endpoint,
                strict=strict,
            )
        )
        return functions.register(*java_functions(java)) if java else functions
    if strict:
        raise RejectedError("SIGNATURE", "strict is for servers only; remove it: embedded functions have one code")
    if bundle_key is not None:
        raise RejectedError(
            "SIGNATURE", "bundle_key is for servers only; remove it: embedded functions are registered without one"
        )
    if state_key is not None and not (isinstance(state_key, bytes) and len(state_key) >= STATE_KEY_BYTES_MIN):
        raise RejectedError(
            "SIGNATURE", f"state_key must be bytes, at least {STATE_KEY_BYTES_MIN}, such as secrets.token_bytes(32)"
        )
    if record is not None:
        _check_record(record)
    registry = Registry.load([*_sources(target), *java_functions(java)])
    PROGRAMS.demand_all(registry.authored)
    transport = EmbeddedTransport(
        registry,
        state_key=state_key if state_key is not None else NO_STATE_KEY,
        job_parameters=job_parameters,
        otlp_endpoint=otlp_endpoint,
        record=record,
    )
    return Functions(transport)


def _check_traces(endpoint: str) -> None:
    """Raise RejectedError SIGNATURE for a bad URL of a collector, MODULE if packages of OpenTelemetry are missing."""
    try:
        check_endpoint(endpoint)
    except ValueError as error:
        raise RejectedError("SIGNATURE", f"otlp_endpoint is {endpoint!r}: {error}") from None
    tracer_of(endpoint)


def _check_record(record: object) -> None:
    """Check `record`. Raises RejectedError: SIGNATURE, MODULE without protobuf, or SETTINGS for its folder."""
    if not isinstance(record, Recordings):
        raise RejectedError("SIGNATURE", f"record must be a Recordings, such as Recordings('folder'), not {record!r}")
    if find_spec("google.protobuf") is None:
        raise RejectedError("MODULE", "recordings need protobuf, which is missing here: pip install protobuf")
    RECORDING.load()  # an error of the driver rather than of each task
    record.make_folder()


def _flight_transport(target: str) -> type[FlightTransport]:
    """Return the transport to servers.

    Raises:
        RejectedError: MODULE, with what to install, if pyarrow has no Flight here, or protobuf is missing or too old.
    """
    try:
        from foldflight.client.flight_transport import FlightTransport
    except ImportError as error:
        requirements = [each for each in requires("foldflight") or () if each.startswith(("protobuf", "pyarrow"))]
        raise RejectedError(
            "MODULE",
            f"cannot connect to {target!r}: the packages that reach servers are missing or too old here ({error}); "
            f"install them: pip install {' '.join(map(repr, requirements))}; "
            "or fold without servers: connect(YourClass)",
        ) from None
    return FlightTransport


def _bundle_key(key: object) -> str | None:
    if key is None or (isinstance(key, str) and len(key.encode()) >= BUNDLE_KEY_BYTES_MIN):
        return key
    raise RejectedError("SIGNATURE", f"bundle_key must be a str of at least {BUNDLE_KEY_BYTES_MIN} bytes")


def credentials(
    urls: Sequence[str],
    *,
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return `token`, and as `tls` the contents of PEM files, by the names of the TLS arguments of pyarrow's client.

    Raises:
        RejectedError: SIGNATURE or SETTINGS, as for `connect`.
    """
    if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable()):
        raise RejectedError(
            "SIGNATURE",
            "token must be a str of printable ASCII characters; of a file's text remove the line break at its end: "
            "token=Path(...).read_text().strip()",
        )
    files = {"tls_root_certs": tls_ca, "cert_chain": tls_cert, "private_key": tls_key}
    tls_files = {name: file for name, file in files.items() if file is not None}
    if tls_files and not all(url.startswith("grpc+tls://") for url in urls):
        raise RejectedError("SIGNATURE", "certificates require TLS; use grpc+tls://host:port for all servers")
    if ("cert_chain" in tls_files) != ("private_key" in tls_files):
        raise RejectedError("SIGNATURE", "only one of tls_cert and tls_key is given; give both or neither")
    try:
        pem_contents = {name: Path(file).read_bytes() for name, file in tls_files.items()}
    except OSError as error:
        raise RejectedError("SETTINGS", f"cannot read {error.filename}: {error.strerror}") from None
    _check_certificates(tls_files)
    return {"token": token, "tls": pem_contents}


def _check_certificates(files: Mapping[str, str | os.PathLike[str]]) -> None:
    """Check certificates with clear errors: gRPC writes the cause to its log only, and says "empty address list"."""
    if not files:
        return
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    problem = ""
    try:
        if (authority := files.get("tls_root_certs")) is not None:
            problem = f"tls_ca {os.fspath(authority)} has no certificate in PEM format; give the authority's"
            context.load_verify_locations(authority)
        if (certificate := files.get("cert_chain")) is not None:
            key = files["private_key"]
            problem = (
                f"TLS cannot use the certificate in tls_cert {os.fspath(certificate)} with the key in tls_key "
                f"{os.fspath(key)}; both must be PEM, belong together, and the key not be encrypted"
            )
            context.load_cert_chain(certificate, key, password="")  # gRPC does not accept encrypted keys
    except ssl.SSLError:
        raise RejectedError("SETTINGS", problem) from None


def _sources(target: object) -> list[object]:
    if isinstance(target, str):
        return [name.strip() for name in target.removeprefix(EMBEDDED).split(",") if name.strip()]
    if isinstance(target, Iterable) and not isinstance(target, (type, ModuleType)):
        return [source for each in target for source in _sources(each)]
    return [target]
