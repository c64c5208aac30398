"""What several commands share: the options of those that call servers, and texts for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

# These variables have a prefix of their own, because a server refuses to start with an unknown variable.
_OPTIONS = (
    ("--token", "FOLDFLIGHT_CLIENT_TOKEN", "Bearer token of the server."),
    ("--tls-ca", "FOLDFLIGHT_CLIENT_TLS_CA", "PEM file with the CA certificates that sign the server's certificate."),
    ("--tls-cert", "FOLDFLIGHT_CLIENT_TLS_CERT", "PEM file with the client certificate, if the server requires one."),
    ("--tls-key", "FOLDFLIGHT_CLIENT_TLS_KEY", "PEM file with that certificate's key."),
)


def printable(text: str) -> str:
    """Escape characters that a terminal may interpret, for texts that are untrusted."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def target_options(command: _Command) -> _Command:
    """Add `token`, `tls_ca`, `tls_cert`, `tls_key` and `deadline_s` to a command, as `connect` takes them."""
    for flag, variable, doc in reversed(_OPTIONS):
        command = click.option(flag, envvar=variable, help=f"{doc}  [{variable}]")(command)
    return click.option("--deadline-s", type=float, default=10.0, show_default=True, help="Longest wait for a server.")(
        command
    )
