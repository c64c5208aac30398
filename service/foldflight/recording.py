"""Which exchanges are recorded, and what the core knows of the extension that records and replays them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Open
from foldflight.extensions import Extension
from foldflight.functions import Registry

if TYPE_CHECKING:
    import click

    from foldflight.exchange.server_exchange import Recorder

RECORDING_KEY_BYTES_MIN = 16
_BYTES_MAX = 1 << 30  # default of `bytes_max`: 1 GiB


@dataclass(frozen=True)
class Recordings:
    """Settings of recordings: which exchanges are recorded, and where. The files have rows and states in plain form.

    Args:
        folder: The folder of the files. If it is missing it is created, for its owner only, as the files are. With
            Spark, a folder that the workers can write, such as one beside the checkpoint. It must be a path of the
            file system.
        of: `"errors"`: exchanges that end with an error, unless another attempt may succeed, and those with isolated
            errors. `"all"`: all exchanges. A mapping of key columns to values, such as `{"customer": ["ann"]}`: the
            rows of these groups only.
        mask: Whether texts are replaced by others of the same order and equality, and bytes, JSON and messages of
            functions are left out. Numbers, dates and direct arguments stay.
        key: Signs the recordings, at least 16 bytes. Whoever has it can verify that nobody has changed them.
        bytes_max: Bytes in the folder, of which the recordings of open exchanges in each process may take half. If
            finished ones take more than the other half, the oldest are removed.

    Raises:
        RejectedError: SIGNATURE, for a value that is not one of these; SETTINGS, if the folder cannot be created.

    >>> import os
    >>> import tempfile
    >>> from foldflight import Recordings, connect
    >>> from foldflight.testing import run_epochs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     count = connect("embedded:", record=Recordings(folder, of="all"))["count"]
    ...     epochs = run_epochs({"n": count()}, [[{"v": 1}]])
    ...     print(len(os.listdir(folder)), "recording, for `foldflight replay`")
    1 recording, for `foldflight replay`
    """

    folder: str
    _: KW_ONLY
    of: Literal["errors", "all"] | Mapping[str, Sequence[Any]] = "errors"
    mask: bool = False
    key: str | None = field(default=None, repr=False)
    bytes_max: int = _BYTES_MAX

    def __post_init__(self) -> None:
        """Check the arguments. The folder becomes absolute, because workers of an engine have folders of their own."""
        object.__setattr__(self, "folder", str(Path(self.folder).absolute()))
        if not (self.of in ("errors", "all") or (isinstance(self.of, Mapping) and self.of)):
            raise RejectedError(
                "SIGNATURE",
                f"of={self.of!r} of Recordings is neither 'errors', 'all' nor a mapping of key columns to values, such "
                "as {'customer': ['ann']}",
            )
        if isinstance(self.of, Mapping) and any(isinstance(each, str) for each in self.of.values()):
            raise RejectedError(
                "SIGNATURE", f"of={self.of!r} of Recordings has a text in place of a list of values; write ['ann']"
            )
        if self.key is not None and len(self.key.encode()) < RECORDING_KEY_BYTES_MIN:
            raise RejectedError("SIGNATURE", f"key of Recordings must have at least {RECORDING_KEY_BYTES_MIN} bytes")
        if self.bytes_max < 1:
            raise RejectedError("SIGNATURE", f"bytes_max={self.bytes_max} of Recordings must be positive")

    @property
    def open_bytes_max(self) -> int:
        """Bytes that the recordings of open exchanges of one process may take."""
        return self.bytes_max // 2

    def make_folder(self) -> None:
        """Create the folder, which only its owner can read. Raises RejectedError SETTINGS."""
        try:
            Path(self.folder).mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RejectedError(
                "SETTINGS", f"the folder of recordings, {self.folder}, cannot be created: {error.strerror}"
            ) from None


class RecordingRoom(Protocol):
    """What the extension `recording` provides: recorders of exchanges, and the command `replay`."""

    def recorder(
        self,
        plan: Recordings,
        open_request: Open,
        registry: Registry,
        server_id: str,
        log: Callable[[str, Mapping[str, Any]], None],
    ) -> Recorder:
        """Return the recorder of an exchange. It logs problems of the file system, and the exchange continues."""

    def command(self) -> click.Command:
        """Return the command `replay`."""


RECORDING: Final = Extension[RecordingRoom]("recording")
