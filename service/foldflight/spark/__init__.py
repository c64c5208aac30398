"""The functions on Spark.

group_by(df, "key").agg(delay=weighted_avg("arr_delay", "distance"))     # aggregate
over(df, "key", order_by="at").agg(delay=weighted_avg("arr_delay", "distance").rows(-99, 0))
with_columns(df, m=multiply("a", "b"))                                   # scalar
join_lateral(df, split("text"))                                          # table

`sql`, `register`, `enable` and `column` come from `foldflight.sql`, which is built on this package. `write_table`, and
functions that read and write change data, such as `from_debezium`, come from extensions. They are imported when they
are first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from foldflight.engine.targets import Target
from foldflight.extensions import Extension
from foldflight.spark.deadletters import dead_letters, results
from foldflight.spark.grouping import GroupedFrame, group_by
from foldflight.spark.over import OverFrame, over
from foldflight.spark.pipelines import with_schema
from foldflight.spark.rowkinds import DELTA_CHANGES
from foldflight.spark.scalar import join_lateral, with_columns
from foldflight.spark.scans.scan import Scan, scan
from foldflight.spark.settings import configure
from foldflight.spark.state_reader import check_checkpoint, state_table
from foldflight.spark.upserts import upserts
from foldflight.spark.versions.states import upgrade_checkpoint
from foldflight.spark.windows import PROCESSING_TIME, Window, cumulate, hop, session, tumble

if TYPE_CHECKING:
    from foldflight.ext.changes import (
        from_canal,
        from_debezium,
        from_maxwell,
        schema_of,
        split_changes,
        to_debezium,
        to_upserts,
    )
    from foldflight.ext.tables import write_table
    from foldflight.sql import column, enable, register, sql

__all__ = [
    "DELTA_CHANGES",
    "PROCESSING_TIME",
    "GroupedFrame",
    "OverFrame",
    "Scan",
    "Target",
    "Window",
    "check_checkpoint",
    "column",
    "configure",
    "cumulate",
    "dead_letters",
    "enable",
    "from_canal",
    "from_debezium",
    "from_maxwell",
    "group_by",
    "hop",
    "join_lateral",
    "over",
    "register",
    "results",
    "scan",
    "schema_of",
    "session",
    "split_changes",
    "sql",
    "state_table",
    "to_debezium",
    "to_upserts",
    "tumble",
    "upgrade_checkpoint",
    "upserts",
    "with_columns",
    "with_schema",
    "write_table",
]

_OF_SQL: Final = ("column", "enable", "register", "sql")
_OF_CHANGES: Final = (
    "from_canal",
    "from_debezium",
    "from_maxwell",
    "schema_of",
    "split_changes",
    "to_debezium",
    "to_upserts",
)
_CHANGES: Final = Extension[Mapping[str, Callable[..., Any]]]("changes")
_TABLES: Final = Extension[Callable[..., Any]]("tables")


def __getattr__(name: str) -> Any:
    """Return a name of `foldflight.sql`, or of an extension."""
    if name == "write_table":
        return _TABLES.load()
    if name in _OF_CHANGES:
        return _CHANGES.load()[name]
    if name not in _OF_SQL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foldflight import sql

    return getattr(sql, name)


def __dir__() -> list[str]:
    """Return the names of this module, also those that are not imported yet: editors and `help` ask for them."""
    return sorted({*globals(), *__all__})
