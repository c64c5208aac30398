"""The URL of a target."""

from __future__ import annotations

from typing import NamedTuple, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from foldflight.errors import RejectedError

__all__ = ["Address"]

KINDS = "duckdb:///path?table=t, postgresql://user@host/db?table=t or delta:///path"


class Address(NamedTuple):
    """A URL in parts. It is never shown, because it may have a password.

    Args:
        scheme: The kind of target: `duckdb`, `postgresql`, `delta`.
        url: The URL without the name of the table.
        path: Its path, for files.
        table: The name of the table in its parts: schema and table, or table. None if the URL names none.
    """

    scheme: str
    url: str
    path: str
    table: tuple[str, ...] | None

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL apart.

        Raises:
            RejectedError: SETTINGS, if it names a table in a wrong way.
        """
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        names = [value for name, value in options if name == "table"]
        if len(names) > 1 or not all(names):
            raise RejectedError("SETTINGS", f"the URL of a target names its table once, as in {KINDS}")
        rest = urlencode([(name, value) for name, value in options if name != "table"])
        shorter = SplitResult(parts.scheme, parts.netloc, parts.path, rest, "").geturl()
        table = tuple(names[0].split(".")) if names else None
        return cls(parts.scheme, shorter, unquote(parts.path), table)

    def named_table(self) -> tuple[str, ...]:
        """Return the name of the table.

        Raises:
            RejectedError: SETTINGS, if there is none.
        """
        if self.table is None:
            raise RejectedError("SETTINGS", f"the URL of the target names no table; add ?table=NAME, as in {KINDS}")
        return self.table

    def local_path(self) -> str:
        """Return the path of a file or folder on this machine.

        Raises:
            RejectedError: SETTINGS, if the URL names a host or no absolute path.
        """
        if urlsplit(self.url).netloc or not self.path.startswith("/"):
            raise RejectedError(
                "SETTINGS", f"the target {self.scheme} has an absolute path behind three slashes, as in {KINDS}"
            )
        return self.path
