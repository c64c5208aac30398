"""Lifted batches as expressions of Spark SQL."""
