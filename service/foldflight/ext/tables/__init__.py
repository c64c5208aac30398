"""The results of streams in tables, each epoch exactly once: `write_table`, and a file for each kind of target.

A target stores the query's id and the epoch in the transaction that changes the rows. If the driver dies before Spark
has committed the epoch, Spark repeats it, and the target finds that it has the epoch already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foldflight.ext.tables.sink import write_table

__all__ = ["provide", "write_table"]


def provide() -> Callable[..., Any]:
    """Return `write_table`."""
    return write_table
