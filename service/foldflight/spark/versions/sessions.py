"""Sessions, errors and tasks of Spark, by the names that its versions have for them."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.sql_formatter import SQLStringFormatter

from foldflight.errors import RejectedError

# What workers run unless PYSPARK_PYTHON names another Python.
_WORKER_PYTHON: Final = "python3"
# The logger to which PySpark 4 writes each error of a query, with the stack trace of the JVM.
_QUERY_CONTEXT_LOGGER: Final = "SQLQueryContextLogger"


@contextmanager
def mute_query_log() -> Iterator[None]:
    """Keep PySpark from logging errors with stack traces. The caller expects them, or raises its own."""
    logger = _logger()
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _logger() -> logging.Logger:
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # before 4.0
        return logging.getLogger(_QUERY_CONTEXT_LOGGER)
    logger: logging.Logger = PySparkLogger.getLogger(_QUERY_CONTEXT_LOGGER)
    return logger


def condition_of(error: PySparkException) -> str | None:
    """Return the condition of an error, which Spark 3.5 calls its class."""
    of: Any = getattr(error, "getCondition", error.getErrorClass)
    condition: str | None = of()
    return condition


def message_of(error: PySparkException) -> str:
    """Return the message of an error. Spark 3.5 has it in its text only."""
    of = getattr(error, "getMessage", None)
    return (None if of is None else of()) or str(error)


def contexts_of(error: PySparkException) -> list[Any]:
    """Return the places of a statement that an error is about; none where Spark does not tell them (3.5)."""
    of = getattr(error, "getQueryContext", None)
    return [] if of is None else list(of() or ())


@contextmanager
def format_statement(spark: Any, text: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Return a statement with DataFrames and values in place of names in braces, as `spark.sql(text, t=df)`."""
    with format_statements(spark) as format_text:
        yield format_text(text, values)


@contextmanager
def format_statements(spark: Any) -> Iterator[Callable[[str, Mapping[str, Any]], str]]:
    """Return a function that formats several statements, as `format_statement` does one.

    A DataFrame has one temporary view for all of them: making one takes Spark as long as analysing a query.
    """
    formatter = SQLStringFormatter(spark)
    try:
        yield lambda text, values: formatter.format(text, **values)
    finally:
        formatter.clear()


def is_spark(session: SparkSession) -> bool:
    """Return whether Spark runs the queries of a session, and not Sail, which speaks the protocol of Spark Connect.

    Each Spark has a folder of tables, also where nobody has set one. A session that is not one of Connect need not be
    asked, which saves a call for each query that is planned.
    """
    return not is_remote(session) or session.conf.get("spark.sql.warehouse.dir") is not None


def estimated_rows(df: DataFrame) -> int | None:
    """Return how many rows Spark expects a query to have by the statistics of its tables; None: they do not tell.

    PySpark tells it in the text of EXPLAIN COST only, which a session of Spark Connect has, too.
    """
    session, view = df.sparkSession, f"foldflight_{uuid.uuid4().hex}"
    df.createOrReplaceTempView(view)
    try:
        # `foldflight.spark.enable` replaces the method of the instance.
        plan = str(type(session).sql(session, f"EXPLAIN COST SELECT * FROM {view}").collect()[0][0])  # noqa: S608 - a name of ours
    finally:
        session.catalog.dropTempView(view)
    match = re.search(r"== Optimized Logical Plan ==\n[^\n]*Statistics\([^\n)]*rowCount=([0-9.E+]+)", plan)
    return None if match is None else int(float(match[1]))


def exact_sums(session: SparkSession, kinds: Collection[str]) -> dict[str, str]:
    """Return how to sum 32-bit integers, 64-bit ones and DECIMALs, as SQL around `{0}`, by the kind of the aggregate.

    The session is asked for its setting only if integers are among the kinds.

    A sum that overflows is NULL or an error. They are for a query that is made now: Spark reads the setting when it
    analyses a query, at once, but over Spark Connect with each action. Sail's `sum` wraps around, which takes 2**31
    rows, and its `try_sum` is slow where groups are many. There, `{rows}` is the number of rows that are added, and a
    group with NULLs alone has the sum 0.
    """
    if not is_spark(session):
        narrow = f"CASE WHEN {_FEW} THEN {_zero_of_none('{0}')} END"
        return {"sum": narrow, "wide sum": _SAIL_WIDE_SUM, "decimal sum": _SAIL_WIDE_SUM}
    # The faster `sum` is checked when the query is executed, too. For DECIMALs its error would advise to turn off ANSI.
    is_asked = not is_remote(session) and not {"sum", "wide sum"}.isdisjoint(kinds)
    is_checked = is_asked and session.conf.get("spark.sql.ansi.enabled") == "true"
    integers = "sum({0})" if is_checked else "try_sum({0})"
    return {"sum": integers, "wide sum": integers, "decimal sum": "try_sum({0})"}


def _zero_of_none(value: str) -> str:
    return f"coalesce(sum({value}), 0L)"


_FEW: Final = "{rows} < 2147483648L"
# Two sums of 32-bit halves, which hold 2**31 rows, put together if they fit. A sum of DECIMALs takes longer.
_LOW: Final = _zero_of_none("{0} & 4294967295L")
_UPPER: Final = f"({_zero_of_none('shiftright({0}, 32)')} + shiftright({_LOW}, 32))"
_SAIL_WIDE_SUM: Final = (
    f"CASE WHEN {_FEW} AND {_UPPER} BETWEEN -2147483648L AND 2147483647L "
    f"THEN shiftleft({_UPPER}, 32) | ({_LOW} & 4294967295L) END"
)


def is_case_sensitive(session: SparkSession) -> bool:
    """Return whether names that differ by case are different names."""
    return session.conf.get("spark.sql.caseSensitive", "false") == "true"


def name_key(session: SparkSession) -> Callable[[str], str]:
    """Return a function that gives two names one value if Spark takes them for the same name."""
    return str if is_case_sensitive(session) else str.casefold


def repeated_name(names: Iterable[str], key: Callable[[str], str] = str.casefold) -> str | None:
    """Return the first name with the key of an earlier one, as Spark compares names without case; None without one."""
    keys = set[str]()
    for name in names:
        if key(name) in keys:
            return name
        keys.add(key(name))
    return None


def is_remote(one: SparkSession | DataFrame) -> bool:
    """Return whether a session, or the session of a query, is one of Spark Connect."""
    return type(one).__module__.startswith("pyspark.sql.connect.")


def same_plan(one: DataFrame, other: DataFrame) -> bool:
    """Return whether two queries are known to be the same. Sail cannot compare queries."""
    return is_spark(one.sparkSession) and one.sameSemantics(other)


def check_workers(session: SparkSession) -> None:
    """Refuse a plan with tasks in Python if Spark's workers on this machine run a python3 that lacks foldflight.

    Each task would fail with a traceback of PySpark. Of the workers of a cluster, of a Python that PYSPARK_PYTHON
    names, and of workers that get files of Python from the driver, nothing is known here.

    Raises:
        RejectedError: SETTINGS, with the Python that Spark runs.
    """
    if is_remote(session):
        return
    context = session.sparkContext
    python = shutil.which(_WORKER_PYTHON)
    holds = context.pythonExec != _WORKER_PYTHON  # platforms choose one, and may have their own ways to fill it
    has_own_path = "PYTHONPATH" in context.environment  # of `spark.executorEnv`, which this process does not have
    if holds or has_own_path or not str(context.master).startswith("local") or python is None:
        return
    if Path(python).parent == Path(sys.executable).parent or _has_foldflight(python):
        return
    if not context.listFiles:  # asked last: reading a list of the JVM takes 80 calls of it, more than a whole plan
        raise RejectedError(
            "SETTINGS",
            f"Spark runs its Python workers with {python}, which has no foldflight or no pyarrow; before the session "
            "is made, activate the environment, or call foldflight.spark.java.prepare_local(os.environ), or set "
            f"PYSPARK_PYTHON={sys.executable}",
        )


@cache
def _has_foldflight(python: str) -> bool:
    """Return whether a Python finds the modules that tasks need, as a worker that inherits this environment does."""
    code = "from importlib.util import find_spec as f; raise SystemExit(not (f('foldflight') and f('pyarrow')))"
    return subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0  # noqa: S603 - as Spark


def in_daemon() -> bool:
    """Return whether this process is a worker of Spark's, which PySpark's daemon has forked."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"


def parallelism(session: SparkSession) -> int:
    """Return how many tasks a session runs at the same time, as far as it tells.

    A session of Spark Connect tells it only in the text of a plan.
    """
    if not is_remote(session):
        return max(int(session.sparkContext.defaultParallelism), 1)
    plan = str(type(session).sql(session, "EXPLAIN SELECT * FROM range(1)").collect()[0][0])
    match = re.search(r"splits=(?:Some\()?(\d+)", plan)
    return 1 if match is None else int(match[1])
