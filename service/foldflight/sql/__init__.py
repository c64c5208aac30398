"""SQL: `sql(spark, "SELECT origin, weighted_avg(delay, distance) FROM flights GROUP BY origin")`.

From text to plans. Spark parses and analyses every statement; this room finds the calls of functions of foldflight, and
replaces them by what Spark can run: functions over lists, or the result of a fold.
"""

from __future__ import annotations

from foldflight.sql.analysis import placed_errors
from foldflight.sql.session import column, emit_of, enable, register, split_statements, sql
from foldflight.sql.text import SqlError

__all__ = ["SqlError", "column", "emit_of", "enable", "placed_errors", "register", "split_statements", "sql"]
