"""Authentication: TLS, bearer tokens with the functions that each permits, and bundle keys.

The tokens file has one token per line, followed by the functions that it permits, as names or shell patterns separated
by commas, spaces or tabs (none: all functions). Lines that begin with # are comments. Names without a function are
logged. The file is read again when it changes, so a token can be replaced without a restart: add the new token, update
the callers, remove the old token.

    # the pricing job
    2f9c0e8d7b6a5f4e  weighted_avg, acme_*
    83b1c2d3e4f5a697

The file of bundle keys has one key per line, and is read again in the same way.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import re
import ssl
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from foldflight.errors import RejectedError
from foldflight.functions.author.spec import AnyFunction, Function
from foldflight.server.ops.logs import Logger
from foldflight.server.ops.metrics import Metrics
from foldflight.server.run.settings import SECRET_BYTES_MIN, SETTINGS, Settings

T = TypeVar("T")


class Secrets(Generic[T]):
    """Secrets of the configuration and of a file, which is read again when it changes.

    If the file cannot be read then, its previous secrets remain valid.

    Args:
        configured_keys: The secrets of the configuration.
        path: The file; None if there is none.
        read: Reads the file, or raises RejectedError SETTINGS.
        logger: Logs each change once.

    Raises:
        RejectedError: SETTINGS if the first reading fails.
    """

    def __init__(
        self, configured_keys: Sequence[T], path: str | None, read: Callable[[Path], Sequence[T]], logger: Logger
    ) -> None:
        self._configured_keys = configured_keys
        self._path = None if path is None else Path(path)
        self._read = read
        self._logger = logger
        self._lock = threading.Lock()
        self._version = None if self._path is None else _version(self._path)
        self._file_keys: Sequence[T] = () if self._path is None else read(self._path)

    def __call__(self) -> list[T]:
        """Return the current secrets."""
        if self._path is None:
            return [*self._configured_keys]
        with self._lock:
            current = _version(self._path)
            if current != self._version:
                # Stored first, so that an unreadable file is logged once and not at every call.
                self._version = current
                self._read_again(self._path)
            return [*self._configured_keys, *self._file_keys]

    def _read_again(self, path: Path) -> None:
        try:
            self._file_keys = self._read(path)
        except RejectedError as error:
            self._logger.warning("keys not read: the previous ones remain valid", problem=error.message)
        else:
            self._logger.info("keys read", count=len(self._file_keys), path=str(path))


@dataclass(frozen=True)
class _Token:
    """The functions that a token permits. Only the digest of the token is stored."""

    digest: bytes
    patterns: tuple[str, ...]


class Tokens:
    """Refuses a call without a known bearer token, before any handler runs.

    Args:
        settings: Tokens that permit all functions, and the file with more tokens.
        known_functions: Names of all functions; None if functions may be shipped.
        metrics: Counts refusals.
        logger: Logs names without a function, and files that became unreadable. The previous tokens then remain valid.

    Raises:
        RejectedError: SETTINGS if the file cannot be read or has a token that is too short.
    """

    def __init__(
        self, settings: Settings, *, known_functions: Collection[str] | None, metrics: Metrics, logger: Logger
    ) -> None:
        self._metrics = metrics
        self._functions = known_functions
        self._logger = logger
        configured_tokens = [_Token(_digest(token), ()) for token in settings.tokens]
        self._secrets = Secrets(configured_tokens, settings.tokens_file, self._read, logger)

    def _read(self, path: Path) -> list[_Token]:
        tokens = _read_tokens(path)
        patterns = {pattern for token in tokens for pattern in token.patterns}
        if self._functions is not None:
            unknown_patterns = sorted(pattern for pattern in patterns if not fnmatch.filter(self._functions, pattern))
            if unknown_patterns:
                self._logger.warning(
                    "the tokens file names functions that this server does not have",
                    names=unknown_patterns,
                    path=str(path),
                )
        return tokens

    def __call__(self, headers: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the patterns of the caller's token, found in a time that does not depend on the token.

        Raises:
            RejectedError: UNAUTHENTICATED.
        """
        authorization: str = headers.get("authorization", "")
        digest = _digest(authorization.removeprefix("Bearer "))
        matching = [token for token in self._secrets() if hmac.compare_digest(token.digest, digest)]
        if not matching or not authorization.startswith("Bearer "):
            self._metrics.errors.labels("UNAUTHENTICATED").inc()
            problem = "the token is wrong" if authorization else "the call has no token"
            raise RejectedError("UNAUTHENTICATED", f"{problem}; pass token=... to connect (--token in commands)")
        return matching[0].patterns


def permitted_functions(context: Any, names: Iterable[str]) -> list[str]:
    """Return the functions that the token of the caller permits; all functions if there are no tokens."""
    if not context.caller:
        return list(names)
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in context.caller)]


def check_allowed(context: Any, names: Iterable[str]) -> None:
    """Raise RejectedError UNAUTHENTICATED unless the token of the caller permits all of the functions."""
    name_set = set(names)
    refused_names = sorted(name_set - set(permitted_functions(context, name_set)))
    if refused_names:
        raise RejectedError(
            "UNAUTHENTICATED",
            f"the token of the caller does not permit {', '.join(refused_names)}; ask the operator of the server for "
            "one that does (a token with names permits only these, also of built-in functions)",
            function=refused_names[0],
        )


def bundle_keys_of(settings: Settings, logger: Logger) -> Secrets[bytes]:
    """Return the keys that authorise shipped functions. Raises RejectedError SETTINGS for a file that is not one."""
    configured_keys = [key.encode() for key in settings.bundle_keys]
    return Secrets(configured_keys, settings.bundle_keys_file, _read_bundle_keys, logger)


def check_state_keys(settings: Settings, functions: Iterable[AnyFunction]) -> None:
    """Raise RejectedError SETTINGS if states of these functions are pickled and there are no state keys."""
    pickled_functions = [
        each for each in functions if isinstance(each, Function) and each.capabilities.codec == "pickle"
    ]
    if pickled_functions and not settings.state_keys:
        first = pickled_functions[0]
        raise RejectedError(
            "SETTINGS",
            f"states of {', '.join(each.name for each in pickled_functions)} are pickled, and pickled states must be "
            f"signed: set {SETTINGS['state_keys'].variable} to a secret of {SECRET_BYTES_MIN} bytes or more, the same "
            "on every "
            f"server; or give {first.name} a typed accumulator or serialize/deserialize (it is pickled because "
            f"{first.capabilities.codec_reason})",
            function=first.name,
        )


def check_keys(settings: Settings, functions: Iterable[AnyFunction]) -> None:
    """Check the keys and certificates of a server before it starts.

    Raises:
        RejectedError: SETTINGS.
    """
    check_state_keys(settings, functions)
    tls_of(settings)
    for path, read_keys in ((settings.tokens_file, _read_tokens), (settings.bundle_keys_file, _read_bundle_keys)):
        if path is not None:
            read_keys(Path(path))


def tokens_of(settings: Settings, functions: Collection[str], *, metrics: Metrics, logger: Logger) -> Tokens | None:
    """Return what checks the tokens of calls; None if there are no tokens."""
    if not settings.tokens and settings.tokens_file is None:
        return None
    # With bundle keys, a token may permit functions that will be shipped.
    known_functions = None if settings.bundle_keys or settings.bundle_keys_file else functions
    return Tokens(settings, known_functions=known_functions, metrics=metrics, logger=logger)


def tls_of(settings: Settings) -> dict[str, Any]:
    """Return the TLS arguments of pyarrow's server; empty without TLS.

    Raises:
        RejectedError: SETTINGS if only one of certificate and key is given, they do not match, or a file cannot be
            read.
    """
    certificate, key, client_ca = settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file
    if (certificate is None) != (key is None) or (client_ca is not None and certificate is None):
        raise RejectedError(
            "SETTINGS", "TLS needs both tls_cert_file and tls_key_file, also if tls_client_ca_file is set; set both"
        )
    if certificate is None or key is None:
        return {}
    arguments: dict[str, Any] = {"tls_certificates": [(_pem(certificate), _pem(key))]}
    if client_ca is not None:
        arguments |= {"verify_client": True, "root_certificates": _pem(client_ca)}
    _check_certificates(certificate, key, client_ca)
    return arguments


def _check_certificates(certificate: str, key: str, client_ca: str | None) -> None:
    """Check certificates with clear errors, because gRPC does not report why a server did not start."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")  # gRPC does not accept encrypted keys
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
    """Return a version of a file: it differs after the content or the permissions change. None if there is no file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    # The modification time is not enough: copying a file may preserve an older one.
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _read_tokens(path: Path) -> list[_Token]:
    return [_Token(_digest(token), _patterns(names, path)) for token, names in _lines(path, "token")]


def _patterns(names: str, path: Path) -> tuple[str, ...]:
    """Return the functions that a line names. Raises RejectedError SETTINGS."""
    patterns = tuple(name for name in re.split(r"[,\s]+", names) if name)
    if names and not patterns:
        # A template with empty values leaves only commas. That must not permit all functions.
        raise RejectedError(
            "SETTINGS",
            f"a token in {path} is followed by commas without a function; name functions, or remove the commas to "
            "permit all",
        )
    return patterns


def _read_bundle_keys(path: Path) -> list[bytes]:
    keys = []
    for key, rest in _lines(path, "bundle key"):
        if rest:
            # Names after a key are probably meant as a restriction, so they must not be ignored.
            raise RejectedError(
                "SETTINGS",
                f"a bundle key in {path} is followed by other text; write each key alone on its line. A bundle key "
                "permits all functions; restrict functions with the tokens of callers",
            )
        keys.append(key.encode())
    return keys


def _lines(path: Path, what: str) -> list[tuple[str, str]]:
    """Return the secret and the remaining text of each line. Raises RejectedError SETTINGS."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RejectedError("SETTINGS", f"cannot read the {what}s file {path}: {error}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        secret, *rest = line.split(None, 1) or [""]
        if not secret or secret.startswith("#"):
            continue
        if len(secret.encode()) < SECRET_BYTES_MIN:
            raise RejectedError(
                "SETTINGS", f"the {what} in line {number} of {path} is shorter than {SECRET_BYTES_MIN} bytes"
            )
        entries.append((secret, rest[0] if rest else ""))
    if not entries:
        raise RejectedError("SETTINGS", f"the {what}s file {path} holds no {what}")
    return entries
