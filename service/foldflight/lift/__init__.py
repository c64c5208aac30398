"""Lifts functions: what a class does for one row, as expressions that an engine can aggregate without Python.

Pure: it reads the source of authors' methods and knows no engine. `lift_text` is what a server or an embedding engine
tells about a call, `Lift` is that as a value, and `Plan` computes the states from sums, counts and extremes.
"""

from foldflight.lift.checks import check_lift
from foldflight.lift.evaluate import evaluate
from foldflight.lift.lifting import lift_text, lifted_of, listed_lift
from foldflight.lift.plan import Aggregate, Overflowed, Plan, Unfit
from foldflight.lift.source import Refused
from foldflight.lift.tree import Expr, Failure, Field, Lift, Outcome

__all__ = [
    "Aggregate",
    "Expr",
    "Failure",
    "Field",
    "Lift",
    "Outcome",
    "Overflowed",
    "Plan",
    "Refused",
    "Unfit",
    "check_lift",
    "evaluate",
    "lift_text",
    "lifted_of",
    "listed_lift",
]
