"""Aggregate classes that were written for other systems: each module knows the methods that one system calls."""

from __future__ import annotations

from collections.abc import Mapping

from foldflight.ext.dialects.arrow_udf import ARROW_UDF
from foldflight.ext.dialects.beam import BEAM
from foldflight.ext.dialects.pyflink import PYFLINK
from foldflight.ext.dialects.snowflake import SNOWFLAKE
from foldflight.ext.dialects.spark_aggregator import SPARK_AGGREGATOR
from foldflight.functions.author.adapters import Adapter


def provide() -> Mapping[str, Adapter]:
    """Return the adapters by name."""
    return {each.name: each for each in (PYFLINK, ARROW_UDF, SPARK_AGGREGATOR, SNOWFLAKE, BEAM)}
