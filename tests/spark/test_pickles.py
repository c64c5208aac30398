"""Pickled states of an author's classes in Spark: batches, streams over restarts and edits, sessions."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from foldflight import connect
from foldflight.client import Functions
from foldflight.spark import group_by, session
from tests.spark.test_stream import Stream
from tests.spark.test_stream_windows import Clicks
from tests.unit.pickled_spread import EDITED, RANGE, define

ROOT = Path(__file__).parents[2]
BUNDLE_KEY = "a key for the bundles of the spark tests"


class Values(Stream):
    """Values by key."""

    ddl = "k string, v bigint"
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])

    def values(self, **values: int) -> None:
        self.write([{"k": k, "v": v} for k, v in values.items()])


@pytest.fixture(scope="module")
def bundles_url() -> Any:
    """A server that folds shipped functions."""
    from foldflight.client import close_connections
    from foldflight.server.run.lifecycle import serving

    with serving(state_keys="a key for the spark tests", bundle_keys=BUNDLE_KEY) as server:
        yield server.url
    close_connections()


Place = Callable[[str], Functions]


@pytest.fixture(
    params=[
        "notebook",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("module", "installed module", "bundle")),
    ]
)
def place(
    request: pytest.FixtureRequest, classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    """Places of a user's code. Each returns the functions of that code, edited or not."""

    def import_class(code: str) -> type:
        name = f"spread_of_{request.param.replace(' ', '_')}_{hash(code) & 0xFFFF}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(folder)
        if request.param == "installed module":
            classic.sparkContext.addPyFile(str(folder / f"{name}.py"))
        cls: type = importlib.import_module(name).Spread
        return cls

    match request.param:
        case "notebook":
            return lambda code: connect(define(code))
        case "bundle":
            url = request.getfixturevalue("bundles_url")
            return lambda code: connect(url, bundle_key=BUNDLE_KEY).register(define(code))
        case _:
            return lambda code: connect(import_class(code))


def test_pickled_classes_are_available_in_both_phases(classic: SparkSession, place: Place) -> None:
    """The class is available in both phases of a batch, wherever it was defined."""
    df = classic.range(0, 1000, 1, 5).selectExpr("id % 3 AS k", "id * id AS v")
    result = group_by(df, "k").agg(s=place(RANGE)["spread"]("v")).collect()
    assert sorted(map(tuple, result)) == [(0, 999**2), (1, 997**2 - 1), (2, 998**2 - 4)]


@pytest.mark.slow
def test_a_restarted_stream_reads_states_with_an_edited_class(
    classic: SparkSession, tmp_path: Path, place: Place
) -> None:
    """A stream that is restarted with another connection and edited code continues with its states."""
    latest: dict[str, int] = {}
    stream = Values(classic, tmp_path, lambda df: df)
    for number, code in enumerate((RANGE, EDITED)):
        functions = place(code)
        stream.query = lambda df, functions=functions: group_by(df, "k", buckets=2).agg(s=functions["spread"]("v"))
        stream.values(a=10**number, b=number)
        for epoch in stream.run():
            latest |= {row["k"]: row["s"] for row in epoch}
    assert latest == {"a": 90, "b": 10}


@pytest.mark.slow
def test_sessions_merge_pickled_states(classic: SparkSession, tmp_path: Path) -> None:
    """Sessions merge their pickled states, over a restart and with an edited class."""
    sessions: dict[int, int] = {}
    stream = Clicks(classic, tmp_path, lambda df: df)
    for code, rows in ((RANGE, [(0, "a", 1), (30, "a", 5)]), (EDITED, [(15, "a", 9)])):
        functions = connect(define(code))
        stream.query = lambda df, functions=functions: group_by(
            df, "page", window=session("at", "20 minutes"), emit="changelog", buckets=2
        ).agg(s=functions["spread"]("v"))
        stream.minutes(*rows)
        for epoch in stream.run():
            for row in sorted(epoch, key=lambda row: row["row_kind"] != "-D"):
                start = row["window_start"].minute
                if row["row_kind"] == "-D":
                    del sessions[start]
                else:
                    sessions[start] = row["s"]
    assert sessions == {0: 80}


@pytest.mark.slow
def test_a_stream_that_cannot_read_its_states_says_what_to_do(classic: SparkSession, tmp_path: Path) -> None:
    """A restart without the class of its states fails with the name of the class and the remedy."""
    stream = Values(classic, tmp_path, lambda df: df)
    renamed_source = RANGE.replace("class R:", "class Renamed:").replace("return R()", "return Renamed()")
    for code in (RANGE, renamed_source):
        functions = connect(define(code))
        stream.query = lambda df, functions=functions: group_by(df, "k", buckets=2).agg(s=functions["spread"]("v"))
        stream.values(a=1)
        if code is RANGE:
            stream.run()
    with pytest.raises(Exception, match=r"STATE_MISMATCH: .*__main__\.R, .*Define it again under this name"):
        stream.run()


def run_script(folder: Path, factor: int) -> list[str]:
    process = subprocess.run(
        [sys.executable, "tests/spark/pickled_query.py", str(folder), str(factor)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "service")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.slow
def test_a_stream_continues_after_its_script_was_edited(tmp_path: Path) -> None:
    """With classes in a script, its batch works, and its stream continues after the script was edited."""
    (tmp_path / "input").mkdir()
    for number, factor in enumerate((1, 10)):
        rows = [{"k": k, "v": 100 * number + v} for k in "ab" for v in range(5)]
        pq.write_table(pa.Table.from_pylist(rows, schema=Values.schema), tmp_path / f"input/{number}.parquet")
        spread = (100 * number + 4) * factor
        expected_lines = [f"('a', {spread}) ('b', {spread})"]
        assert run_script(tmp_path, factor) == [f"batch {expected_lines[0]}", f"stream {expected_lines[0]}"]
