"""Names of the pieces of states: the same if Spark repeats an epoch with the same rows, and unique otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from foldflight.spark import bucketed
from foldflight.spark.bucketed import RunNames


class Task:
    """The context of a task."""

    epoch: str | None = "7"

    @classmethod
    def get(cls) -> Any:
        return cls

    @classmethod
    def getLocalProperty(cls, name: str) -> str | None:  # noqa: N802
        assert name == "streaming.sql.batchId"
        return cls.epoch


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> type[Task]:
    monkeypatch.setattr(bucketed, "TaskContext", Task)
    monkeypatch.setattr(Task, "epoch", "7")
    return Task


def named(*pieces: bytes) -> list[str]:
    names = RunNames()
    return [names(each) for each in pieces]


def test_a_repeated_epoch_has_the_same_names(task: type[Task]) -> None:
    """A snapshot of the first attempt then has the pieces of the second one's manifest."""
    assert named(b"one", b"two") == named(b"one", b"two")


def test_other_bytes_and_epochs_have_other_names(task: type[Task]) -> None:
    """Also equal pieces of an epoch, since one may be removed while the other is used; and other rows."""
    same = named(b"one", b"one")
    other = named(b"other", b"one")
    task.epoch = "8"
    later = named(b"one", b"one")
    assert len({*same, other[0], *later}) == 5


def test_without_a_stream_names_are_unique(task: type[Task]) -> None:
    """Outside of Spark's streams nothing is repeated."""
    task.epoch = None
    assert len({*named(b"one"), *named(b"one")}) == 2
