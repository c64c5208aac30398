"""`connect`: the one way to functions, whichever way they are reached."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from foldflight.client.embedded import PROGRAMS, EmbeddedTransport
from foldflight.client.flight import FlightTransport, server_urls
from foldflight.client.functions import Functions
from foldflight.errors import RejectedError
from foldflight.exchange.failover.steps import FailoverBounds
from foldflight.fold.signing import STATE_KEY_BYTES_MIN
from foldflight.functions.registry import Registry
from foldflight.shipping.bundles import BUNDLE_KEY_BYTES_MIN

__all__ = ["EMBEDDED", "connect", "tls_files"]

EMBEDDED = "embedded:"
_DEADLINE_S = 60.0
_PATIENCE_S = 60.0
# A stream reads the states of its earlier runs, so this key is the same in all processes: it only detects damage.
_NO_STATE_KEY = b"foldflight: no state key was given"


def connect(
    target: object,
    *,
    deadline_s: float = _DEADLINE_S,
    patience_s: float = _PATIENCE_S,
    job_parameters: Mapping[str, str] | None = None,
    state_key: bytes | None = None,
    token: str | None = None,
    bundle_key: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
) -> Functions:
    """Reach functions.

    Args:
        target: Where they are:
            `"embedded:examples.weighted_avg"` (several modules: separated by commas), a class under `@udaf`, a module,
            or several of these: folded in the calling process, or in the engine's workers;
            `"grpc://host:port"`, or `"grpc+tls://host:port"` with TLS (several servers: separated by commas): folded by
            Flight servers, in turns.
        deadline_s: Longest wait for a server at any one step, in seconds: a server that takes longer counts as lost.
            It must be longer than a function needs for one chunk.
        patience_s: How long a query that is planned, or an exchange that has lost its server, looks for one that
            answers, in seconds; then it is the RetryableError of the last one. `connect` itself asks each server once.
        job_parameters: What `FunctionContext.job_parameters` shows to the functions.
        state_key: Signs the pickled states of embedded functions. Without one, whoever can write to a stream's
            checkpoint can make the query that reads it run code; with one, only states that were signed with it are
            unpickled. A stream has to be given the same key again when it is restarted.
        token: The bearer token that servers ask for.
        bundle_key: Signs functions for servers that were started with the same key, on `register`. It stays in this
            process: an engine's workers get what it has signed.
        tls_ca: PEM file with the certificates that servers' certificates are signed with; the system's unless given.
        tls_cert: PEM file with this client's certificate, where servers ask for one.
        tls_key: PEM file with that certificate's key. Files are read here and now: an engine's workers need none.

    Returns:
        Functions: By name, `connect(...)["weighted_avg"]` or `connect(...).weighted_avg`; where there is one beside the
            built-in ones, it can be called at once: `connect(WeightedAvg)("value", "weight")`.

    Raises:
        RetryableError: UNREACHABLE or DEADLINE when no server answers.
        RejectedError: MODULE when a module cannot be imported; SIGNATURE for a bad target, or for an embedded function
            that is declared `compile=True` and cannot be compiled; SETTINGS for a file that cannot be read;
            UNAUTHENTICATED.

    >>> connect("embedded:")["count"]().function.signature
    'count([value]) -> BIGINT'
    """
    if isinstance(target, str) and not target.startswith(EMBEDDED):
        try:
            urls = server_urls(target)
        except RejectedError as error:
            raise RejectedError(
                error.code,
                f"cannot connect to {target!r}: {error.message}; to fold in this process, give embedded:module or a "
                "class under @udaf",
            ) from None
        if state_key is not None:
            raise RejectedError("SIGNATURE", "state_key is for embedded functions; servers have their own state keys")
        tls = tls_files(urls, tls_root_certs=tls_ca, cert_chain=tls_cert, private_key=tls_key)
        return Functions(
            FlightTransport(
                urls,
                deadline_s=deadline_s,
                bounds=FailoverBounds(patience_s=patience_s),
                token=token,
                tls=tls,
                job_parameters=job_parameters,
                bundle_key=_bundle_key(bundle_key),
            )
        )
    if bundle_key is not None:
        raise RejectedError("SIGNATURE", "bundle_key is for servers; embedded functions need none to be registered")
    if state_key is not None and not (isinstance(state_key, bytes) and len(state_key) >= STATE_KEY_BYTES_MIN):
        raise RejectedError(
            "SIGNATURE", f"state_key must be bytes, at least {STATE_KEY_BYTES_MIN}, such as secrets.token_bytes(32)"
        )
    registry = Registry.load(_sources(target))
    PROGRAMS.demand_all(registry.authored)
    transport = EmbeddedTransport(
        registry,
        state_key=state_key if state_key is not None else _NO_STATE_KEY,
        job_parameters=job_parameters,
    )
    return Functions(transport)


def _bundle_key(given: object) -> str | None:
    if given is None or (isinstance(given, str) and len(given.encode()) >= BUNDLE_KEY_BYTES_MIN):
        return given
    raise RejectedError("SIGNATURE", f"bundle_key must be a text of at least {BUNDLE_KEY_BYTES_MIN} bytes")


def tls_files(urls: Sequence[str], **files: str | os.PathLike[str] | None) -> dict[str, bytes]:
    """Return what pyarrow's client wants for TLS, read from PEM files. Raises RejectedError SIGNATURE or SETTINGS."""
    given = {name: file for name, file in files.items() if file is not None}
    if given and not all(url.startswith("grpc+tls://") for url in urls):
        raise RejectedError("SIGNATURE", "certificates are for TLS; write grpc+tls://host:port")
    if ("cert_chain" in given) != ("private_key" in given):
        raise RejectedError("SIGNATURE", "tls_cert and tls_key belong together; give both, or neither")
    try:
        return {name: Path(file).read_bytes() for name, file in given.items()}
    except OSError as error:
        raise RejectedError("SETTINGS", f"cannot read {error.filename}: {error.strerror}") from None


def _sources(target: object) -> list[object]:
    if isinstance(target, str):
        return [name.strip() for name in target.removeprefix(EMBEDDED).split(",") if name.strip()]
    if isinstance(target, Iterable) and not isinstance(target, (type, ModuleType)):
        return [source for each in target for source in _sources(each)]
    return [target]
