"""The results of streams in tables, each epoch exactly once: `write_table`, and a file for each kind of target.

A target stores the query's id and the epoch in the transaction that changes the rows. If the driver dies before Spark
has committed the epoch, Spark repeats it, and the target finds that it has the epoch already.
"""

from __future__ import annotations

from foldflight.engine.targets import Target
from foldflight.spark.tables.sink import write_table

__all__ = ["Target", "write_table"]
