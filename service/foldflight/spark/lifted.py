"""What Spark's plans know of lifted batches: the extension `lift` makes their DataFrames and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from foldflight.engine.query.query import Query
from foldflight.extensions import Extension
from foldflight.spark.expressions import Text


class SparkPlanner(Protocol):
    """What the extension provides for Spark. A query is lifted only if the extension is there (`Query.lift_choice`)."""

    def result(self, query: Query, rows: DataFrame, outputs: Sequence[st.DataType]) -> DataFrame:
        """Return the result of a batch query that is lifted.

        Args:
            query: The query, whose calls all have plans.
            rows: The input rows: keys, the row kind (if rows have kinds), arguments and filters.
            outputs: Spark's types of the outputs.
        """

    def text(
        self,
        query: Query,
        rows: Text,
        columns: Mapping[str, str],
        outputs: Sequence[st.DataType],
        session: SparkSession,
        items: Sequence[tuple[str, str]] | None = None,
    ) -> Text:
        """Return the same as SQL; for a query that Python finishes, only the aggregates of its groups.

        Args:
            query: The query.
            rows: The input, without collated texts.
            columns: The input's columns that are keys, arguments and filters, as SQL.
            outputs: Spark's types of the outputs.
            session: The session.
            items: The columns of the result, each with the name that it is given. Default: all, with the query's.
        """

    def finished_by_python(
        self, query: Query, groups: DataFrame, rows: st.StructType, outputs: Sequence[st.DataType]
    ) -> DataFrame:
        """Return the result of a batch query that Spark does not finish.

        Args:
            query: The query.
            groups: What Spark makes of the SQL of `text`.
            rows: The columns of the input.
            outputs: Spark's types of the outputs.
        """


LIFT: Final = Extension[SparkPlanner]("lift")
