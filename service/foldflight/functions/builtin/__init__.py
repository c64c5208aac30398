"""The built-in functions, written as authors write theirs.

Results follow Spark SQL: `sum` of integers is BIGINT and fails on overflow, `avg` of decimals has four more
digits, NaN is greater than any number, variance and deviation of too few rows are NULL.
"""

from foldflight.functions.builtin.numeric import (
    Avg,
    BoolAnd,
    BoolOr,
    Count,
    First,
    Last,
    Max,
    Min,
    Stddev,
    StddevPop,
    StddevSamp,
    StringAgg,
    Sum,
    Variance,
    VarPop,
    VarSamp,
)

__all__ = [
    "Avg",
    "BoolAnd",
    "BoolOr",
    "Count",
    "First",
    "Last",
    "Max",
    "Min",
    "Stddev",
    "StddevPop",
    "StddevSamp",
    "StringAgg",
    "Sum",
    "VarPop",
    "VarSamp",
    "Variance",
]
