"""Memory that tasks leave in Spark's Python worker."""

import gc
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest

from foldflight.spark import worker
from foldflight.spark.arrow import arrow_function


@pytest.fixture(autouse=True)
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_modules_frozen", [0])
    task = SimpleNamespace(
        partitionId=int, attemptNumber=int, stageId=int, getLocalProperty=lambda _: None
    )  # the first of a stage
    monkeypatch.setattr(worker, "TaskContext", SimpleNamespace(get=lambda: task))
    yield
    gc.unfreeze()


def test_a_process_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a task of Spark, as in Sail, nothing is frozen."""
    monkeypatch.setattr(worker, "TaskContext", SimpleNamespace(get=lambda: None))
    gc.unfreeze()
    worker.freeze_garbage_collector()
    assert gc.get_freeze_count() == 0


@pytest.mark.every_turn
def test_the_collector_passes_over_what_a_task_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a task that has imported modules, all existing objects are frozen; other tasks freeze nothing."""
    monkeypatch.setitem(sys.modules, "a_new_module", types.ModuleType("a_new_module"))
    worker.freeze_garbage_collector()
    gc.unfreeze()
    list(arrow_function(iter, "step")(iter([])))
    assert gc.get_freeze_count() == 0
    monkeypatch.setitem(sys.modules, "another_new_module", types.ModuleType("another_new_module"))
    batch = pa.RecordBatch.from_pydict({"v": [1, 2]})
    assert list(arrow_function(iter, "step")(iter([batch]))) == [batch]
    assert gc.get_freeze_count() > 10_000
