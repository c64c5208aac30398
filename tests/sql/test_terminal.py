"""The shell of `foldflight sql` in a terminal."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.terminal import in_terminal

SHELL = """
from contextlib import nullcontext
from threading import Event
from unittest.mock import Mock, patch
from rich.console import Console
from foldflight.cli import sql

ended, spark = Event(), Mock()
spark.sparkContext.cancelAllJobs.side_effect = ended.set

class Runner(sql._Runner):
    def _rows(self, statement):
        print(f"<{statement}>")
        if "slow" in statement:
            print("started")
            ended.wait(600)
        return Mock(isStreaming=False, columns=()), []

with (
    patch.object(sql, "_words", return_value=["flights", "origin", "weighted_avg"]),
    patch.object(sql, "spark_progress", lambda *_: nullcontext()),
    patch("foldflight.sql.placed_errors", lambda *_: nullcontext()),
):
    sql._shell(Runner(spark, Console(), output="table", timing=False))
print("ended", spark.sparkContext.cancelAllJobs.call_count)
"""


@pytest.mark.every_turn
def test_the_shell_edits_completes_and_remembers_statements(tmp_path: Path) -> None:
    """Statements of several lines, completion, Ctrl-C in a line and in a statement, history that lasts, help, quit."""
    with in_terminal(SHELL, env={"HOME": str(tmp_path)}) as shell:
        shell.expect("foldflight>")
        shell.type("SELECT 'a;\r")
        shell.expect("...>")
        shell.type("b' FROM t;\r")
        shell.expect("<SELECT 'a;\nb' FROM t>")
        shell.expect("foldflight>")
        shell.type("CREATE AGGREGATE f(INT) AS $$\ra = 1;\r$$;\r")
        shell.expect("<CREATE AGGREGATE f(INT) AS $$\na = 1;\n$$>")
        shell.expect("foldflight>")
        shell.type("SELECT weig")
        shell.expect("weighted_avg")  # the menu
        shell.type("\t(v) FROM t;\r")
        shell.expect("<SELECT weighted_avg(v) FROM t>")
        shell.expect("foldflight>")
        shell.type("SELECT never\x03")
        shell.expect("foldflight>")
        shell.type("\\?\r")
        shell.expect("EXPLAIN FOLDFLIGHT")
        shell.expect("foldflight>")
        shell.type("SELECT slow;\r")
        shell.expect("started")
        shell.type("\x03")
        shell.expect("stopped")
        shell.expect("foldflight>")
        shell.type("exit;\r")
        shell.expect("ended 1")
        assert shell.end() == 0
    with in_terminal(SHELL, env={"HOME": str(tmp_path)}) as shell:
        shell.expect("foldflight>")
        shell.type("\x1b[A\x1b[A\r")
        shell.expect("<SELECT slow>")
        shell.expect("started")
        shell.type("\x03")
        shell.expect("foldflight>")
        shell.type("\x04")
        assert shell.end() == 0


@pytest.mark.slow
def test_the_shell_watches_a_stream_until_ctrl_c(tmp_path: Path) -> None:
    """`--watch` prints the changes of each epoch until Ctrl-C, and the shell goes on."""
    (tmp_path / "events").mkdir()

    def write(name: str, value: int) -> None:
        pq.write_table(pa.table({"k": ["a"], "v": [value]}), tmp_path / f"{name}.parquet")
        (tmp_path / f"{name}.parquet").rename(tmp_path / "events" / f"{name}.parquet")

    write("first", 2)
    query = "SELECT k, weighted_avg(v, 1) AS a FROM events GROUP BY k EMIT CHANGES;"
    options = ("--table", f"events={tmp_path / 'events'}", "--functions", "examples.weighted_avg", "--watch")
    command = "from foldflight.cli.main import cli; cli(prog_name='foldflight')"
    with in_terminal(command, "sql", *options, env={"HOME": str(tmp_path)}) as shell:
        shell.expect("foldflight>")
        shell.type(f"EXPLAIN FOLDFLIGHT {query}\r")
        shell.expect("group by k")
        shell.expect("foldflight>")
        shell.type(f"{query}\r")
        shell.expect("│ a │ 2 │ +I")
        write("second", 4)
        shell.expect("│ a │ 3 │ +U")
        shell.type("\x03")
        shell.expect("foldflight>")
        shell.type("SELECT weighted_avg(v, 1), raise_error('boom') FROM events EMIT CHANGES;\r")
        shell.expect("foldflight: [USER_RAISED_EXCEPTION] boom")
        assert "Traceback" not in shell.expect("foldflight>")
        shell.type("SELECT 40 + 2 AS answer;\r")
        shell.expect("│ 42 ")
        shell.expect("foldflight>")
        shell.type("\x04")
        assert shell.end() == 0
