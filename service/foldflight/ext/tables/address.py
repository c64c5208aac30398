"""The URL of a target."""

from __future__ import annotations

from typing import Final, NamedTuple, Self
from urllib.parse import unquote

from foldflight.errors import RejectedError

KINDS = "duckdb:///path?table=t, postgresql://user@host/db?table=t, delta:///path or iceberg://catalog/namespace.table"
_TABLE: Final = "table="


class Address(NamedTuple):
    """A URL in parts. It is never shown, because it may have a password.

    Args:
        scheme: The kind of target: `duckdb`, `postgresql`, `delta`, `iceberg`.
        url: The URL without the name of the table.
        location: What follows the scheme, without parameters: `///path` for files.
        table: The name of the table in its parts: schema and table, or table. None if the URL names none.
    """

    scheme: str
    url: str
    location: str
    table: tuple[str, ...] | None

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL apart.

        Raises:
            RejectedError: SETTINGS, if it names a table in a wrong way.
        """
        # The rest stays as it is: libpq has its own rules for user, password, hosts and parameters.
        base, _, query = url.partition("?")
        options = query.split("&") if query else []
        names = [unquote(option.removeprefix(_TABLE)) for option in options if option.startswith(_TABLE)]
        if len(names) > 1 or not all(names):
            raise RejectedError("SETTINGS", f"the URL of a target names its table once, as in {KINDS}")
        rest = "&".join(option for option in options if not option.startswith(_TABLE))
        scheme, _, location = base.partition(":")
        table = tuple(names[0].split(".")) if names else None
        return cls(scheme, f"{base}?{rest}" if rest else base, unquote(location), table)

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
        if not self.location.startswith("///"):
            raise RejectedError(
                "SETTINGS", f"the target {self.scheme} has an absolute path behind three slashes, as in {KINDS}"
            )
        return self.location.removeprefix("//")

    def in_catalog(self) -> tuple[str, tuple[str, ...]]:
        """Return the name of a catalogue and the name of a table in it, in parts.

        Raises:
            RejectedError: SETTINGS, if the URL does not have both.
        """
        catalog, _, table = self.location.removeprefix("//").partition("/")
        parts = tuple(table.split("."))
        if not self.location.startswith("//") or not catalog or len(parts) < 2 or not all(parts):
            raise RejectedError(
                "SETTINGS", f"the target {self.scheme} has a catalogue and a table with its namespace, as in {KINDS}"
            )
        return catalog, parts
