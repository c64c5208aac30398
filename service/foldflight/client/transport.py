"""What a transport offers: the same interface embedded and over Flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from foldflight.exchange.frames import FunctionInfo, Open, Opened
    from foldflight.functions.context import LogRecord

__all__ = ["OpenExchange", "Transport"]


class OpenExchange(Protocol):
    """One exchange, from the engine's side; a context manager that closes itself.

    Every method may raise any error of the taxonomy; after an error only `close` may be called.
    """

    @property
    def opened(self) -> Opened:
        """What the server said when it took the exchange."""

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> None:
        """Merge states into slots: columns `slot` int32 and one `state_i` per call.

        Where Open asks for initial outputs, `initial_outputs` returns those of these slots, unless `unanswered`.
        """

    def chunk(self, batch: pa.RecordBatch) -> None:
        """Fold rows: a batch of the columns that Open announced."""

    def forget(self, slots: pa.Int32Array) -> None:
        """Drop the accumulators of these slots."""

    def barrier(self, epoch: int) -> None:
        """End an epoch; epochs increase. `results` fetches what it returns."""

    def results(self, epoch: int) -> pa.Table:
        """Wait for the results of an epoch: dirty slots, ascending, in the schema of `opened.schema`."""

    def initial_outputs(self) -> pa.RecordBatch:
        """Return the outputs that answer the oldest `states` not yet asked about."""

    def row_outputs(self) -> pa.RecordBatch:
        """Return the outputs after each row of the oldest `chunk` not yet asked about."""

    def take_logs(self) -> Sequence[LogRecord]:
        """Return what functions logged since last asked."""

    def close(self) -> None:
        """End the exchange and free what it holds; safe to call twice and after an error."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, exception_type: type[BaseException] | None, *rest: object) -> None:
        """Close."""


class Transport(Protocol):
    """A way to reach functions; picklable, so that an engine's workers can carry it."""

    def infos(self) -> list[FunctionInfo]:
        """Return what is served, by name."""

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return what an exchange would be opened with, without opening it."""

    def open(self, open: Open) -> OpenExchange:  # noqa: A002
        """Open an exchange."""
