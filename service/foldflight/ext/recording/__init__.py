"""Exchanges in files, their replay, and the fewest rows that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from foldflight.exchange.frames import Open
from foldflight.functions import Registry
from foldflight.recording import RecordingRoom, Recordings

if TYPE_CHECKING:
    import click

    from foldflight.exchange.server_exchange import Recorder


def provide() -> RecordingRoom:
    """Return what records and replays."""
    return _Room()


class _Room:
    def recorder(
        self,
        plan: Recordings,
        open_request: Open,
        registry: Registry,
        server_id: str,
        log: Callable[[str, Mapping[str, Any]], None],
    ) -> Recorder:
        """Return the recorder of an exchange."""
        from foldflight.ext.recording.recorder import ExchangeRecorder  # it imports protobuf

        return ExchangeRecorder(plan, open_request, registry, server_id, log)

    def command(self) -> click.Command:
        """Return the command `replay`."""
        from foldflight.ext.recording.command import replay

        return replay
