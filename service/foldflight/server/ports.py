"""The ports of a server: their addresses, their sockets, and how many connections each accepts."""

from __future__ import annotations

import resource
import socket
from typing import Final

from foldflight.server.run.settings import port_taken

_CONNECTIONS_MAX: Final = 4096
_BACKLOG: Final = 128


def authority(host: str, port: int) -> str:
    """Return host and port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connections_max(share: float, *, most: int = _CONNECTIONS_MAX, files_each: int = 1) -> int:
    """Return how many connections a port accepts, so that files remain for the other ports and everything else.

    Args:
        share: The share of the port in the files that this process may open. The shares of a process add up to 3/4.
        most: The bound where files are plentiful.
        files_each: The files that a connection takes.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else min(most, int(files * share) // files_each)


def listen(name: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port; 0 selects a free one. On `::` it accepts IPv4, too, like gRPC.

    Args:
        name: The setting of the port, for the error.
        host: The address.
        port: The port.

    Raises:
        RejectedError: SETTINGS if the port cannot be bound.
    """
    is_dual = host == "::" and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual)
    except OSError as error:
        raise port_taken(name, host, port, error.strerror) from None
