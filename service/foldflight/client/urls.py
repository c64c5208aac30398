"""The URLs of servers."""

from __future__ import annotations

from urllib.parse import urlsplit

from foldflight.errors import RejectedError

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
        told = ""
        if url.startswith(("http://", "https://")):
            told = (
                "; HTTP has the status page and metrics of a server (setting http_port, 8817 by default), and clients "
                "call it by Arrow Flight (setting port: --port or FOLDFLIGHT_PORT, 8815 by default)"
            )
        raise RejectedError(
            "SIGNATURE",
            f'{url!r} is not the URL of a server; give "grpc://host:port" or "grpc+tls://host:port"{told}',
        )
    return url
