"""Change data of databases: the events of other tools as rows with row kinds, and changelogs as such events.

`cdc` reads Maxwell and Canal (fast: `canalreader`), and splits other events. `debezium` plans the reading of Debezium's
events, and `debeziumreader` does it in Spark's Python workers. `events` writes events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foldflight.ext.changes.cdc import from_canal, from_maxwell, split_changes
from foldflight.ext.changes.debezium import from_debezium, schema_of
from foldflight.ext.changes.events import to_debezium, to_upserts

__all__ = [
    "from_canal",
    "from_debezium",
    "from_maxwell",
    "provide",
    "schema_of",
    "split_changes",
    "to_debezium",
    "to_upserts",
]


def provide() -> Mapping[str, Callable[..., Any]]:
    """Return the functions that `foldflight.spark` offers, by their names."""
    functions = (from_canal, from_debezium, from_maxwell, schema_of, split_changes, to_debezium, to_upserts)
    return {each.__name__: each for each in functions}
