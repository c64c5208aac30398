"""Errors travel between processes: from tasks to drivers, and from the pools of users."""

from __future__ import annotations

import importlib
import pickle
import pkgutil

import pytest
from pyspark.errors import AnalysisException

import foldflight
from foldflight.errors import CorruptError, FoldflightError, FunctionError, RejectedError, RetryableError
from foldflight.ext.changes.debeziumreader import UnreadableEvent
from foldflight.sql.analysis import SparkSqlError
from foldflight.sql.text import SqlError

_SQL = SqlError("no such column", "SELECT x\nFROM t", 7, code="SCHEMA_MISMATCH", condition="UNRESOLVED_COLUMN")
ERRORS = (
    RetryableError("DEADLINE", "too late", repeats=True, story=("Open", "Chunk")),
    RejectedError("LIMIT", "too much", limit="max_rows", recorded="in a file"),
    FunctionError("USER_CODE", "bad luck", function="f", row="x=1", trace="line 1").with_group({"k": None}),
    CorruptError("STATE_CHECKSUM", "damaged", slot=3),
    _SQL,
    UnreadableEvent("no key"),
)


def _classes(of: type[FoldflightError]) -> set[type[FoldflightError]]:
    return {of}.union(*map(_classes, of.__subclasses__()))


def test_every_class_is_tried() -> None:
    """Each class of error that a module of foldflight has is among the classes of the next tests."""
    for module in pkgutil.walk_packages(foldflight.__path__, "foldflight."):
        importlib.import_module(module.name)
    error_classes = {each for each in _classes(FoldflightError) if each.__module__.startswith("foldflight.")}
    assert error_classes == {FoldflightError, SparkSqlError, *map(type, ERRORS)}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_pickled_errors_keep_what_they_tell(error: FoldflightError) -> None:
    """A pickled error has its class, its text, and all that it tells, such as its code and notes."""
    error.add_note("a note")
    read = pickle.loads(pickle.dumps(error))
    assert type(read) is type(error)
    assert (str(read), read.args, vars(read)) == (str(error), error.args, vars(error))


def test_pickled_errors_of_spark_keep_place_and_condition() -> None:
    """The pickle of Spark's refusal has its place and condition, and leaves Spark's own error behind."""
    spark = AnalysisException("no such table", errorClass="TABLE_OR_VIEW_NOT_FOUND", messageParameters={})
    read = pickle.loads(pickle.dumps(SparkSqlError(_SQL, spark)))
    assert type(read) is SqlError
    assert str(read) == str(_SQL)
    assert (read.condition, read.text, read.start, read.stop) == ("UNRESOLVED_COLUMN", _SQL.text, 7, 8)
