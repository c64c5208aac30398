"""The functions on Spark: `group_by(df, "key").agg(delay=weighted_avg("arr_delay", "distance"))`."""

from __future__ import annotations

from foldflight.spark.batch import GroupedFrame, group_by
from foldflight.spark.windows import Window, cumulate, hop, tumble

__all__ = ["GroupedFrame", "Window", "cumulate", "group_by", "hop", "tumble"]
