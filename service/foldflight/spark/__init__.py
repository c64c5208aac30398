"""The functions on Spark: `group_by(df, "key").agg(delay=weighted_avg("arr_delay", "distance"))`."""

from __future__ import annotations

from foldflight.spark.batch import GroupedFrame, group_by

__all__ = ["GroupedFrame", "group_by"]
