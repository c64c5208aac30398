"""The functions on Spark.

group_by(df, "key").agg(delay=weighted_avg("arr_delay", "distance"))     # aggregate
with_columns(df, m=multiply("a", "b"))                                   # scalar
join_lateral(df, split("text"))                                          # table
"""

from __future__ import annotations

from foldflight.spark.cdc import DELTA_CHANGES, from_canal, from_debezium, from_maxwell, split_changes
from foldflight.spark.deadletters import dead_letters, results
from foldflight.spark.frame import GroupedFrame, group_by
from foldflight.spark.lateral import join_lateral
from foldflight.spark.mapping import with_columns
from foldflight.spark.settings import configure
from foldflight.spark.stored import state_table
from foldflight.spark.windows import PROCESSING_TIME, Window, cumulate, hop, session, tumble

__all__ = [
    "DELTA_CHANGES",
    "PROCESSING_TIME",
    "GroupedFrame",
    "Window",
    "configure",
    "cumulate",
    "dead_letters",
    "from_canal",
    "from_debezium",
    "from_maxwell",
    "group_by",
    "hop",
    "join_lateral",
    "results",
    "session",
    "split_changes",
    "state_table",
    "tumble",
    "with_columns",
]
