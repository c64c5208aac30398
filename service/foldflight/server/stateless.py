"""Stateless calls of RisingWave and Databend, as the server knows them. The extension `wire` answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from foldflight.exchange.frames import Frame, Open
from foldflight.extensions import Extension
from foldflight.functions import AnyFunction

Ask: TypeAlias = Callable[[Frame], Iterator[Any]]
"""Sends a frame to an open exchange, and yields its answers."""


class StatelessCall(Protocol):
    """A call of one function over the batches of one stream.

    Attributes:
        open_request: What the exchange is opened with.
        function: The function.
    """

    open_request: Open
    function: AnyFunction

    def answers(self, batch: pa.RecordBatch, ask: Ask) -> Iterator[tuple[list[pa.Array], pa.Array | None]]:
        """Yield the answers to a batch of the client, which has been validated.

        Each answer has the encoded columns, and the errors of rows, if there are any.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a value that the declared type cannot hold.
        """

    def schema(self, *, errors: bool) -> pa.Schema:
        """Return the schema of the answers, with or without a column of errors."""


class StatelessRoute(Protocol):
    """What the path of a descriptor selects."""

    @property
    def name(self) -> str:
        """The name of the function."""

    @property
    def takes_lists(self) -> bool:
        """Whether the function takes lists with the rows of a group."""

    def schema(self, function: AnyFunction) -> pa.Schema:
        """Return the schema of the arguments and results of a function, in the types of the client."""

    def call(self, function: AnyFunction, columns: pa.Schema) -> StatelessCall:
        """Return a call of the function over a stream with these columns.

        Raises:
            RejectedError: SCHEMA_MISMATCH for columns that do not fit the function.
        """


class StatelessClients(Protocol):
    """What the extension provides.

    Attributes:
        version_action: The action by which clients ask for the version of their protocol.
        version_answer: The answer. A client reads only this one. So if tokens are required, every action without a
            valid token gets this answer and then UNAUTHENTICATED: the server need not know which action was requested.
    """

    version_action: str
    version_answer: bytes

    def route(self, path: str) -> StatelessRoute:
        """Return what a path selects."""


STATELESS: Final = Extension[StatelessClients]("wire")
