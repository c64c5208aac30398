"""Lift functions: describe what a class does for one row by expressions that an engine can aggregate without Python.

`descriptions.py` makes the JSON text that a server returns for a call. `Lift` (`tree.py`) is its content. `LiftPlan`
(`plan.py`) computes the states from sums, counts and extremes. These modules are pure: they read the source of authors'
methods and know no engine. The plans of a query (`queries.py`) and Spark's expressions and tasks (`spark.py`) do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as st

    from foldflight.engine.query.query import Query, QueryLift
    from foldflight.ext.lift.law import LiftedForm
    from foldflight.functions.author.spec import BoundFunction
    from foldflight.spark.batch import Text

__all__ = ["provide"]


def provide() -> _Lift:
    """Return an object for the protocols of `lift`, `engine.query.query`, `spark.batch` and `testing.laws`."""
    return _Lift()


class _Lift:
    """Imports what a method needs at its first call: a server needs neither plans nor Spark."""

    def describe(self, bound: BoundFunction) -> str:
        """Return the description of a call as JSON, or of the reason why it is not lifted."""
        from foldflight.ext.lift.descriptions import lift_text

        return lift_text(bound)

    def reason(self, text: str) -> str:
        """Return why a call with this description is not lifted; empty if it is. Raises RejectedError BAD_FRAME."""
        from foldflight.ext.lift.descriptions import lifted_of

        return lifted_of(text)[1]

    def plan_lift(self, query: Query) -> QueryLift:
        """Return how a query can be lifted. Raises RejectedError BAD_FRAME, if a description is damaged."""
        from foldflight.ext.lift.queries import plan_lift

        return plan_lift(query)

    def result(self, query: Query, rows: DataFrame, outputs: Sequence[st.DataType]) -> DataFrame:
        """Return the result of a batch query that is lifted; see `SparkPlanner.result`."""
        from foldflight.ext.lift.spark import lifted_result

        return lifted_result(query, rows, outputs)

    def text(
        self,
        query: Query,
        rows: Text,
        columns: Mapping[str, str],
        outputs: Sequence[st.DataType],
        session: SparkSession,
        items: Sequence[tuple[str, str]] | None = None,
    ) -> Text:
        """Return the same as SQL, without what Python does; see `SparkPlanner.text`."""
        from foldflight.ext.lift.spark import lifted_text

        return lifted_text(query, rows, columns, outputs, session, items)

    def finished_by_python(
        self, query: Query, groups: DataFrame, rows: st.StructType, outputs: Sequence[st.DataType]
    ) -> DataFrame:
        """Return the result of finished groups; see `SparkPlanner.finished_by_python`."""
        from foldflight.ext.lift.spark import finished_by_python

        return finished_by_python(query, groups, rows, outputs)

    def form(self, bound: BoundFunction, types: Sequence[pa.DataType]) -> tuple[LiftedForm | None, str]:
        """Return the lifted form of a call, to compare it with the interpreter; or None and the reason."""
        from foldflight.ext.lift.law import form_of

        return form_of(bound, types)
