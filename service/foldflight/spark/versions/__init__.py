"""All that differs between versions of PySpark, and the names of PySpark that are not documented or newer than 3.5.

Each version may cost a page here. Other modules import from here what is in `__all__`, and ask `facts` what the
installed Spark can do.
"""

from __future__ import annotations

from foldflight.spark.versions.facts import (
    ARROW_UDFS,
    CONNECT,
    PLAIN_AGGREGATES,
    PLAIN_TABLES,
    STREAMS,
    TABLES,
    here,
    newer_grammar,
    require,
)
from foldflight.spark.versions.sessions import (
    check_workers,
    condition_of,
    contexts_of,
    estimated_rows,
    exact_sum,
    exact_wide_sum,
    formatted,
    in_daemon,
    is_remote,
    is_spark,
    message_of,
    quiet,
    same_plan,
)
from foldflight.spark.versions.states import (
    FILE_MANAGER,
    StatefulProcessor,
    check_operators,
    state_reader,
    transform_with_state,
    upgrade_checkpoint,
)
from foldflight.spark.versions.types import (
    UNCOMPARABLE,
    arrow_type,
    collates_by_bytes,
    nullable,
    spark_type,
    type_named,
)
from foldflight.spark.versions.udfs import arrow_udf

__all__ = [
    "ARROW_UDFS",
    "CONNECT",
    "FILE_MANAGER",
    "PLAIN_AGGREGATES",
    "PLAIN_TABLES",
    "STREAMS",
    "TABLES",
    "UNCOMPARABLE",
    "StatefulProcessor",
    "arrow_type",
    "arrow_udf",
    "check_operators",
    "check_workers",
    "collates_by_bytes",
    "condition_of",
    "contexts_of",
    "estimated_rows",
    "exact_sum",
    "exact_wide_sum",
    "formatted",
    "here",
    "in_daemon",
    "is_remote",
    "is_spark",
    "message_of",
    "newer_grammar",
    "nullable",
    "quiet",
    "require",
    "same_plan",
    "spark_type",
    "state_reader",
    "transform_with_state",
    "type_named",
    "upgrade_checkpoint",
]
