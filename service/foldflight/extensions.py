"""Load the rooms of `foldflight.ext`, without which the core runs.

The core defines a protocol for what it uses of a room, and asks an `Extension` for it. So the core imports no room, and
a room is loaded when it is first needed. The table names our own rooms; they need no metadata of an installed package,
so they are also found in a zip, and on a PYTHONPATH.
"""

from __future__ import annotations

import importlib
from typing import Final, Generic, TypeVar

from foldflight.errors import RejectedError

ROOMS: Final = {
    "changes": "events of change data capture",
    "compiler": "compiled functions",
    "conformance": "the conformance kit",
    "dialects": "aggregate classes of other systems",
    "java": "functions in Java",
    "lift": "lifted batches",
    "recording": "recordings of exchanges and their replay",
    "tables": "write_table",
    "tracing": "spans of OpenTelemetry",
    "wire": "stateless calls of RisingWave and Databend",
}
"""What each room is for, by the name of its package in `foldflight.ext`."""

T = TypeVar("T")


class Extension(Generic[T]):
    """The object that a room of `foldflight.ext` provides to the core. Its function `provide` returns it.

    Args:
        room: The room, which `ROOMS` names.
    """

    def __init__(self, room: str) -> None:
        self.room = room
        self._purpose = ROOMS[room]
        self._loaded: T | None = None

    def load(self) -> T:
        """Return what the room provides.

        Raises:
            RejectedError: MODULE, if this installation has no such room.
        """
        if self._loaded is None:
            name = f"{__package__}.ext.{self.room}"
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name not in (
                    name,
                    f"{__package__}.ext",
                ):  # the room exists, and a module that it imports does not
                    raise
                raise RejectedError(
                    "MODULE",
                    f"{self._purpose}: the package {name} is missing in this installation; install all of foldflight",
                ) from None
            self._loaded = module.provide()
        return self._loaded

    def find(self) -> T | None:
        """Return what the room provides, for callers that can do without; None if this installation lacks the room."""
        try:
            return self.load()
        except RejectedError:
            return None
