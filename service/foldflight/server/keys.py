"""Who may call: TLS, bearer tokens that rotate, the functions that each token opens, and whose functions are taken.

The tokens file has a token on each line, and after it the functions that it opens, as names or shell patterns,
separated by commas, spaces or tabs (none: all of them). Lines that begin with # are comments. Names that no function
has are logged. The file is read again when it has changed, so a token is replaced without a restart: add the new one,
move the callers over, remove the old one.

    # the pricing job
    2f9c0e8d7b6a5f4e  weighted_avg, acme_*
    83b1c2d3e4f5a697

The file of bundle keys has a key on each line, and is read again in the same way.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import re
import ssl
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow.flight as fl

from foldflight.errors import RejectedError
from foldflight.server.edge import to_flight_error
from foldflight.server.run.settings import SECRET_BYTES_MIN, SETTINGS

if TYPE_CHECKING:
    from foldflight.functions.spec import Function
    from foldflight.server.ops.logs import Logger
    from foldflight.server.ops.metrics import Metrics
    from foldflight.server.run.settings import Settings

__all__ = [
    "SECRET_BYTES_MIN",
    "BundleKeys",
    "Tokens",
    "allowed",
    "check_allowed",
    "check_keys",
    "check_state_keys",
    "tls_of",
    "tokens_of",
]

_MIDDLEWARE = "token"

T = TypeVar("T")


class _Reread(Generic[T]):
    """What a file holds, read again when it has changed; one that became unreadable changes nothing.

    Args:
        path: The file.
        read: Reads it, or raises RejectedError SETTINGS.
        logger: Told, once for each change.

    Raises:
        RejectedError: SETTINGS, when it cannot be read at first.
    """

    def __init__(self, path: Path, read: Callable[[Path], Sequence[T]], logger: Logger) -> None:
        self._path = path
        self._read = read
        self._logger = logger
        self._lock = threading.Lock()
        self._version = _version(path)
        self._held = read(path)

    def __call__(self) -> Sequence[T]:
        """Return what the file holds now."""
        with self._lock:
            found = _version(self._path)
            if found != self._version:
                # Noted first: a file that cannot be read is complained of once, not at every call.
                self._version = found
                self._look_again()
            return self._held

    def _look_again(self) -> None:
        try:
            self._held = self._read(self._path)
        except RejectedError as error:
            self._logger.warning("keys not read: the last ones stay valid", problem=error.message)
        else:
            self._logger.info("keys read", count=len(self._held), path=str(self._path))


@dataclass(frozen=True)
class _Token:
    """What a token opens; the token itself is not kept, only its digest."""

    digest: bytes
    patterns: tuple[str, ...]


class Tokens(fl.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Refuses a call without a known bearer token, before any handler runs.

    Args:
        given: Tokens that open all functions.
        path: The tokens file, if there is one.
        known: Names of the functions that there are; None where others may come.
        metrics: Counts refusals.
        logger: Told of names that no function has, and when the file has become unreadable; the tokens that were read
            last stay valid then.

    Raises:
        RejectedError: SETTINGS, for a file that cannot be read or holds a token that is too short.
    """

    def __init__(
        self,
        given: Iterable[str],
        path: Path | None,
        *,
        known: Collection[str] | None,
        metrics: Metrics,
        logger: Logger,
    ) -> None:
        super().__init__()
        self._given = [_Token(_digest(token), ()) for token in given]
        self._metrics = metrics
        self._functions = known
        self._logger = logger
        self._from_file = None if path is None else _Reread(path, self._read, logger)

    def _read(self, path: Path) -> list[_Token]:
        tokens = _read_tokens(path)
        patterns = {pattern for token in tokens for pattern in token.patterns}
        if self._functions is not None:
            unknown = sorted(pattern for pattern in patterns if not fnmatch.filter(self._functions, pattern))
            if unknown:
                self._logger.warning(
                    "the tokens file names functions that this server does not have", names=unknown, path=str(path)
                )
        return tokens

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Caller:  # noqa: ARG002  (pyarrow calls it so)
        """Find the caller's token, in a time that does not depend on how much of it is right."""
        given = next((values[0] for key, values in headers.items() if key.lower() == "authorization"), "")
        digest = _digest(given.removeprefix("Bearer "))
        matching = [token for token in self._known() if hmac.compare_digest(token.digest, digest)]
        if not matching or not given.startswith("Bearer "):
            self._metrics.errors.labels("UNAUTHENTICATED").inc()
            problem = "the token is wrong" if given else "the call carries no token"
            raise to_flight_error(RejectedError("UNAUTHENTICATED", f"{problem}; pass token=... to connect"))
        return _Caller(matching[0].patterns)

    def _known(self) -> list[_Token]:
        return [*self._given, *(() if self._from_file is None else self._from_file())]


class _Caller(fl.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """One call's token."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        super().__init__()
        self.patterns = patterns


def allowed(context: Any, names: Iterable[str]) -> list[str]:
    """Return those of the functions that the caller's token opens; all of them where there are no tokens."""
    caller = context.get_middleware(_MIDDLEWARE)
    patterns = () if caller is None else caller.patterns
    if not patterns:
        return list(names)
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def check_allowed(context: Any, names: Iterable[str]) -> None:
    """Raise RejectedError UNAUTHENTICATED unless the caller's token opens all of the functions."""
    named = set(names)
    closed = sorted(named - set(allowed(context, named)))
    if closed:
        raise RejectedError(
            "UNAUTHENTICATED",
            f"the caller's token does not open {', '.join(closed)}; ask the operator of the server for one that does",
            function=closed[0],
        )


class BundleKeys:
    """The keys whose bundles a server takes: none unless it was given some.

    Args:
        settings: Keys, and the file with more.
        logger: Told when the file has become unreadable; the keys that were read last stay valid then.

    Raises:
        RejectedError: SETTINGS, for a file that cannot be read or holds a key that is too short.
    """

    def __init__(self, settings: Settings, logger: Logger) -> None:
        self._given = [key.encode() for key in settings.bundle_keys]
        path = settings.bundle_keys_file
        self._from_file = None if path is None else _Reread(Path(path), _read_bundle_keys, logger)

    def __call__(self) -> list[bytes]:
        """Return the keys that are valid now."""
        return [*self._given, *(() if self._from_file is None else self._from_file())]


def check_state_keys(settings: Settings, functions: Iterable[Function]) -> None:
    """Raise RejectedError SETTINGS where states of these functions are pickled and nothing would sign them."""
    pickled = [function for function in functions if function.capabilities.codec == "pickle"]
    if pickled and not settings.state_keys:
        first = pickled[0]
        raise RejectedError(
            "SETTINGS",
            f"states of {', '.join(each.name for each in pickled)} are pickled, and pickled states are only taken "
            f"signed: set {SETTINGS['state_keys'].variable} to a secret of {SECRET_BYTES_MIN} bytes or more, the same "
            f"on every server; or give {first.name} a typed accumulator or serialize/deserialize (it is pickled "
            f"because {first.capabilities.codec_reason})",
            function=first.name,
        )


def check_keys(settings: Settings, functions: Iterable[Function]) -> None:
    """Check all that a server needs of keys and certificates, before it serves anything.

    Raises:
        RejectedError: SETTINGS.
    """
    check_state_keys(settings, functions)
    tls_of(settings)
    for path, read in ((settings.tokens_file, _read_tokens), (settings.bundle_keys_file, _read_bundle_keys)):
        if path is not None:
            read(Path(path))


def tokens_of(
    settings: Settings, functions: Collection[str], *, metrics: Metrics, logger: Logger
) -> dict[str, Tokens] | None:
    """Return the middleware of a server with these functions; None where everybody may call."""
    if not settings.tokens and settings.tokens_file is None:
        return None
    path = None if settings.tokens_file is None else Path(settings.tokens_file)
    # A token may well open a function that an engine is going to ship.
    known = None if settings.bundle_keys or settings.bundle_keys_file else functions
    return {_MIDDLEWARE: Tokens(settings.tokens, path, known=known, metrics=metrics, logger=logger)}


def tls_of(settings: Settings) -> dict[str, Any]:
    """Return what pyarrow's server wants for TLS; nothing where there is none.

    Raises:
        RejectedError: SETTINGS, for a certificate without a key, the reverse, a key that is not the certificate's, or
            a file that cannot be read.
    """
    certificate, key, client_ca = settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file
    if (certificate is None) != (key is None) or (client_ca is not None and certificate is None):
        raise RejectedError("SETTINGS", "TLS needs tls_cert_file and tls_key_file; tls_client_ca_file comes on top")
    if certificate is None or key is None:
        return {}
    given: dict[str, Any] = {"tls_certificates": [(_pem(certificate), _pem(key))]}
    if client_ca is not None:
        given |= {"verify_client": True, "root_certificates": _pem(client_ca)}
    _check_certificates(certificate, key, client_ca)
    return given


def _check_certificates(certificate: str, key: str, client_ca: str | None) -> None:
    """Say what is wrong with certificates: of a server that gRPC did not start, pyarrow only says that it did not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")  # gRPC takes no key that is encrypted
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"the key in tls_key_file {key} does not belong to the certificate in tls_cert_file {certificate}"
        else:
            problem = (
                f"TLS cannot use the certificate in tls_cert_file {certificate} with the key in tls_key_file {key}: "
                f"{_reason(error)}; both must be PEM, and the key not encrypted"
            )
        raise RejectedError("SETTINGS", problem) from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise RejectedError(
                "SETTINGS", f"TLS cannot use the certificates in tls_client_ca_file {client_ca}: {_reason(error)}"
            ) from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "not valid PEM").replace("_", " ").lower()


def _pem(path: str) -> bytes:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise RejectedError("SETTINGS", f"cannot read {path}: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise RejectedError("SETTINGS", f"{path} is not PEM: it has no line -----BEGIN ...-----")
    return content


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _version(path: Path) -> tuple[int, ...] | None:
    """Return what changes when the file, or who may read it, does; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    # Times of content alone may be set back by whoever copies a file into place.
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_tokens(path: Path) -> list[_Token]:
    return [_Token(_digest(token), _patterns(names, path)) for token, names in _lines(path, "token")]


def _patterns(names: str, path: Path) -> tuple[str, ...]:
    """Return the functions that a line names. Raises RejectedError SETTINGS."""
    patterns = tuple(name for name in re.split(r"[,\s]+", names) if name)
    if names and not patterns:
        # A template whose values are empty leaves its commas: that must not open everything.
        raise RejectedError(
            "SETTINGS",
            f"a token in {path} is followed by commas and no function; name some, or nothing for all of them",
        )
    return patterns


def _read_bundle_keys(path: Path) -> list[bytes]:
    keys = []
    for key, rest in _lines(path, "bundle key"):
        if rest:
            # Whoever writes names behind a key means to bound it: that must not be passed over.
            raise RejectedError(
                "SETTINGS",
                f"a bundle key in {path} is followed by something else: a key stands alone on its line, without "
                "spaces, and is good for all functions; the tokens of callers open some of them",
            )
        keys.append(key.encode())
    return keys


def _lines(path: Path, what: str) -> list[tuple[str, str]]:
    """Return the secret of each line, and what stands after it. Raises RejectedError SETTINGS."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RejectedError("SETTINGS", f"cannot read the {what}s file {path}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        secret, *rest = line.split(None, 1) or [""]
        if not secret or secret.startswith("#"):
            continue
        if len(secret.encode()) < SECRET_BYTES_MIN:
            raise RejectedError(
                "SETTINGS", f"the {what} in line {number} of {path} is shorter than {SECRET_BYTES_MIN} bytes"
            )
        found.append((secret, rest[0] if rest else ""))
    if not found:
        raise RejectedError("SETTINGS", f"the {what}s file {path} holds no {what}")
    return found
