"""Attempts of a Spark task: an error that would repeat is raised at once; other tasks run again."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.taskcontext import TaskContext

from foldflight import FoldflightError, FunctionError, RejectedError, RetryableError, connect, udaf
from foldflight.client.exchange import take_first_turn
from foldflight.exchange.encoding import decode_error, encode_error
from foldflight.exchange.failover.coordinator import Circuits
from foldflight.fold.failures import user_failure
from foldflight.spark import worker
from foldflight.spark.worker import attempt
from foldflight.testing import run_epochs

HIDDEN = "SPARK_HIDE_TRACEBACK"


class Task:
    """The context of a task in a worker."""

    def __init__(self, number: int, partition: int = 3) -> None:
        self.number = number
        self.partition = partition

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name, as those below
        return self.number

    def stageId(self) -> int:  # noqa: N802
        return 7

    def getLocalProperty(self, name: str) -> None:  # noqa: N802
        return None

    def partitionId(self) -> int:  # noqa: N802
        return self.partition


Run = Callable[..., list[int]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which errors are stored."""
    monkeypatch.setattr(worker, "private_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one attempt of a task that raises. Return its output, or raise its error."""
    monkeypatch.setenv(HIDDEN, "")  # so that it is put back
    monkeypatch.delenv(HIDDEN)
    tried_numbers: list[int] = []

    def run_attempt(number: int, error: Exception | None, *, partition: int = 3, step: str = "one") -> list[int]:
        monkeypatch.setattr(TaskContext, "get", lambda: Task(number, partition))
        with attempt(step):
            tried_numbers.append(number)
            if error is not None:
                raise error
        return tried_numbers

    run_attempt.done = tried_numbers  # type: ignore[attr-defined]
    return run_attempt


def failure(error: Exception) -> FunctionError:
    try:
        raise error
    except Exception as excinfo:
        return user_failure("mean", "accumulate", excinfo)


def error_of_run(run: Run, *arguments: Any, **options: Any) -> FoldflightError:
    with pytest.raises(FoldflightError) as excinfo:
        run(*arguments, **options)
    return excinfo.value


def test_an_error_that_would_repeat_is_raised_before_the_task_runs(run: Any) -> None:
    """The second attempt raises the error of the first with the same text, without running the task."""
    first = error_of_run(run, 0, failure(ValueError("bad luck \udc80")).with_group({"k": "ann", "n": None}))
    second = error_of_run(run, 1, failure(ValueError("another")))
    assert run.done == [0]
    assert str(second) == str(first)
    assert (type(second), second.code, second.function) == (FunctionError, "USER_CODE", "mean")
    assert "group: k='ann', n=None" in str(second)
    assert os.environ[HIDDEN]


@pytest.mark.parametrize(
    "error",
    [failure(ConnectionError("gone")), failure(MemoryError()), RetryableError("UNREACHABLE", "gone")],
    ids=["network", "memory", "server"],
)
def test_an_error_that_may_pass_is_tried_again(run: Any, error: FoldflightError) -> None:
    """Errors of networks, memory and servers may be temporary."""
    for number in (0, 1):
        assert error_of_run(run, number, error) is error
    assert run.done == [0, 1]


def test_every_further_attempt_raises_it(run: Any) -> None:
    """What the second attempt raises again is raised by the third as well, without running."""
    error = failure(ValueError("bad"))
    for number in range(4):
        assert str(error_of_run(run, number, error)) == str(error)
    assert run.done == [0]


def test_an_error_does_not_outlive_a_success(run: Any) -> None:
    """A task that has succeeded (on another host) after a failure runs again when Spark has lost its output."""
    error = failure(ValueError("bad luck"))
    error_of_run(run, 0, error)
    assert run(2, None) == [0, 2]  # attempt 1 succeeded elsewhere


def test_a_stage_that_runs_again_knows_no_error_of_before(run: Any) -> None:
    """Its first attempt forgets what was kept, so a second one (whose first was lost) does not meet it."""
    error_of_run(run, 0, failure(ValueError("bad luck")))
    assert run(0, None) == [0, 0]
    assert run(1, None) == [0, 0, 1]


def test_other_tasks_and_first_attempts_run(run: Any) -> None:
    """A failure belongs to one partition of one step; a first attempt ignores it, as after a rerun of the stage."""
    error = failure(ValueError("bad"))
    error_of_run(run, 0, error)
    for case in ({"partition": 4}, {"step": "two"}):
        error_of_run(run, 1, error, **case)
    error_of_run(run, 0, error)
    assert run.done == [0, 1, 1, 0]


def test_damaged_and_missing_files_hold_nothing(run: Any, tmp_path: Path) -> None:
    """With damaged or missing files the task runs again; old files are removed."""
    error = RejectedError("CANNOT_MERGE", "no such merge")
    error_of_run(run, 0, error)
    (failure_file,) = tmp_path.iterdir()
    failure_file.write_text('{"class": "os"}')
    old = tmp_path / "old-1-1.failed"
    old.touch()
    os.utime(old, (time.time() - 1e6,) * 2)
    error_of_run(run, 1, error)
    assert run.done == [0, 1]
    assert list(tmp_path.iterdir()) == [failure_file]


def test_outside_a_task_nothing_is_stored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a task, in the driver or a test, nothing is stored."""
    monkeypatch.delenv(HIDDEN, raising=False)
    with pytest.raises(RejectedError), attempt("one"):
        raise RejectedError("SIGNATURE", "wrong")
    assert not list(folder.iterdir())
    assert HIDDEN not in os.environ


def test_a_sent_error_says_whether_it_repeats() -> None:
    """An engine knows of a server's error whether it repeats, unless the server is older."""
    for error in (failure(ValueError("bad")), failure(OSError("gone")), RetryableError("DRAINING", "later")):
        error_sent = decode_error(encode_error(error))
        assert error_sent is not None
        assert error_sent.repeats == error.repeats
    assert [failure(ValueError()).repeats, failure(OSError()).repeats] == [True, False]


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_function_that_is_not_deterministic_may_do_better(deterministic: bool) -> None:
    """Only errors of deterministic functions repeat."""

    @udaf(name="lucky", input_types=["BIGINT"], result_type="BIGINT", deterministic=deterministic)
    class Lucky:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, v: int) -> int:
            raise ValueError("not today")

        def get_value(self, accumulator: int) -> int:
            return accumulator

    with pytest.raises(FunctionError) as excinfo:
        run_epochs({"n": connect(Lucky)["lucky"]("v")}, [[{"v": 1}]])
    assert excinfo.value.repeats is deterministic


@pytest.mark.parametrize("servers", [2, 3, 5])
def test_the_tasks_of_a_query_take_turns(run: Run, servers: int) -> None:
    """Of tasks that begin together, each server gets its share; a repeated task begins at the next server."""
    urls = [f"server-{number}" for number in range(servers)]

    def server_of(step: str, partition: int, number: int = 0) -> str:
        """Return the server at which an attempt of a task begins, in a process of its own."""
        run(number, None, partition=partition, step=step)
        turn = take_first_turn()
        assert turn is not None
        circuits = Circuits(lambda: 0.5, first_turn=1)
        circuits.begin(turn)
        chosen_url = circuits.choose(urls, 0.0)
        assert chosen_url is not None
        return chosen_url

    for tasks in (2, 8, 11):
        counts = Counter(server_of("query", partition) for partition in range(tasks))
        assert max(counts.values()) - min(counts[url] for url in urls) <= 1
    first, second = server_of("query", 4), server_of("query", 4, number=1)
    assert urls.index(second) == (urls.index(first) + 1) % servers
    assert {server_of(f"query {number}", 0) for number in range(40)} == {*urls}, "queries begin at any server"
