"""Workers of Spark record exchanges of embedded functions; dead letters in Parquet are replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foldflight import Recordings, connect
from foldflight.cli.main import cli
from foldflight.ext.recording.file import read_recording
from foldflight.spark import dead_letters, group_by
from tests.unit.recorded_functions import Ratio

FUNCTION = "tests.unit.recorded_functions:Ratio"
pytestmark = pytest.mark.slow


def rows_with_one_bad(classic: Any) -> Any:
    return (
        classic.range(2000)
        .selectExpr("id % 10 AS k", "id AS price", "IF(id = 1234, 0, id % 5 + 1) AS qty")
        .repartition(3)
    )


@pytest.mark.parametrize("plan", ["batch", "stream"])
def test_a_worker_records_an_error_and_names_the_file(classic: Any, tmp_path: Path, plan: str) -> None:
    """The error of a batch, and of a stream, names the file that the worker has written, with the keys of groups."""
    ratio = connect(Ratio, record=Recordings(str(tmp_path / "recordings")))
    rows = rows_with_one_bad(classic)
    if plan == "batch":
        run_plan = group_by(rows, "k").agg(r=ratio("price", "qty")).collect
    else:
        rows.write.parquet(str(tmp_path / "rows"))
        stream = classic.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
        query = group_by(stream, "k").agg(r=ratio("price", "qty")).writeStream.format("noop").outputMode("update")
        run_plan = query.trigger(availableNow=True).start().awaitTermination
    with pytest.raises(Exception, match="foldflight replay") as excinfo:
        run_plan()
    path = next((tmp_path / "recordings").glob("*.recording"))
    assert path.name in str(excinfo.value)
    assert {"k": 4} in read_recording(path).groups.values()
    run = CliRunner().invoke(cli, ["replay", str(path), "--function", FUNCTION, "--shrink"], env={"COLUMNS": "200"})
    assert "rows that still fail: 1" in run.output
    assert "k=4" in run.output


def test_dead_letters_of_spark_are_replayed(classic: Any, tmp_path: Path) -> None:
    """What `dead_letters` writes as Parquet fails again, as a test with literal rows."""
    result = group_by(rows_with_one_bad(classic), "k", on_error="isolate").agg(r=connect(Ratio)("price", "qty"))
    dead_letters(result).write.parquet(str(tmp_path / "letters"))
    test = tmp_path / "test_bug.py"
    options = ["--function", FUNCTION, "--to-test", str(test)]
    run = CliRunner().invoke(cli, ["replay", str(tmp_path / "letters"), *options])
    assert "{'k': 4, 'price': 1234, 'qty': 0}" in test.read_text(), run.output
