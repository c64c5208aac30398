"""`foldflight sql`: statements of the command line, of a file and of standard input; tables, outputs and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from foldflight.cli import sql as command
from foldflight.cli.main import cli
from foldflight.cli.sql import _run_complete, _words
from tests.spark_sessions import lend

MODULE = "tests.sql.sql_functions"


@pytest.fixture
def run(db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command in a session of its own of the tests' Spark, with a table `t`."""
    pq.write_table(
        pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3], "w": pa.array([1, 1, 3], pa.int32())}), tmp_path / "t.parquet"
    )
    lend(monkeypatch, command, db.newSession)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **options: CliRunner().invoke(
        cli, ["sql", "--table", "t=t.parquet", *arguments], **options
    )


@pytest.mark.every_turn
def test_statements_of_the_command_line_print_their_rows(run: Callable[..., Result]) -> None:
    """Each statement, with functions of a module, prints its rows as CSV or JSON."""
    query = "SELECT k, weighted(v, w) AS a, count(*) AS n FROM t GROUP BY k ORDER BY k;"
    result = run("--functions", MODULE, "--output", "csv", "-e", query)
    assert (result.exit_code, result.output) == (0, "k,a,n\na,2,2\nb,2,1\n")
    result = run(
        "--functions", MODULE, "--output", "json", "-e", query, "-e", "SELECT NULL AS x, date'2026-01-01' AS d"
    )
    assert [json.loads(line) for line in result.output.splitlines()] == [
        {"k": "a", "a": 2, "n": 2},
        {"k": "b", "a": 2, "n": 1},
        {"x": None, "d": "2026-01-01"},
    ]


@pytest.mark.every_turn
def test_a_file_of_statements_stops_at_the_first_error(run: Callable[..., Result], tmp_path: Path) -> None:
    """A file of statements stops at the first that fails; what it creates lasts in the catalogue."""
    (tmp_path / "a.sql").write_text(
        f"CREATE AGGREGATE w(BIGINT, INT) RETURNS BIGINT AS '{MODULE}:Weighted'; -- a comment; with a semicolon\n"
        "SELECT w(v, w) AS a FROM t;\nSELECT nope FROM t; SELECT 'never' AS x"
    )
    result = run("-f", "a.sql", "--catalog", "catalog.sql", "--output", "csv")
    assert result.exit_code == 1
    assert result.stdout == "a\n2\n"
    assert "`nope` cannot be resolved" in result.stderr
    assert result.stderr.startswith("foldflight: a.sql: ")
    assert "(line 3, column 8)" in result.stderr
    assert result.stderr.splitlines()[1:] == ["  SELECT nope FROM t; SELECT 'never' AS x", "         ^^^^"]
    result = run("--catalog", "catalog.sql", "-e", "SELECT k, w(v, w) AS a FROM t GROUP BY k ORDER BY k LIMIT 1")
    assert result.exit_code == 0
    assert "│ a │ 2 │" in result.output


def test_mistakes_are_shown_with_a_caret(run: Callable[..., Result]) -> None:
    """Errors are text with a caret; wrong options are refused before Spark starts."""
    result = run("--functions", MODULE, "-e", "SELECT k,\n wieghted(v, w) FROM t GROUP BY k")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-2:] == ["   wieghted(v, w) FROM t GROUP BY k", "   ^^^^^^^^^^^^^^"]
    assert "Did you mean weighted?" in result.stderr
    assert "no file or folder 'u.parquet'" in run("--table", "u=u.parquet").stderr
    assert "must have the form NAME=PATH" in run("--table", "u").stderr
    assert "is a file" in run("--watch", "-e", "SELECT 1").stderr


def test_statements_are_read_from_standard_input(run: Callable[..., Result]) -> None:
    """Without a terminal, the shell reads statements from standard input."""
    result = run("--output", "csv", input="SELECT max(v) AS m\nFROM t;\nSHOW AGGREGATES;\n")
    assert result.output == "m\n3\nname,arguments,append_only,where\n"


def test_ctrl_c_stops_the_statement(capsys: pytest.CaptureFixture[str]) -> None:
    """The shell goes on after Ctrl-C in a statement; the text behind it is dropped."""
    runner = Mock()
    runner.run.side_effect = KeyboardInterrupt
    assert _run_complete(runner, "SELECT 1; SELECT 2; SELECT") == ""
    runner.run.assert_called_once_with("SELECT 1")
    assert "stopped" in capsys.readouterr().err


def test_tables_may_have_odd_names_and_contents(run: Callable[..., Result], tmp_path: Path) -> None:
    """A name may have any characters; a file that Spark cannot read is an error without a traceback."""
    result = run("--table", "my-data=t.parquet", "--output", "csv", "-e", "SELECT max(v) AS m FROM `my-data`")
    assert result.output == "m\n3\n"
    (tmp_path / "broken.parquet").write_text("this is no Parquet file")
    result = run("--table", "broken=broken.parquet", "-e", "SELECT 1")
    assert isinstance(result.exception, SystemExit)
    assert "broken.parquet" in result.stderr


def test_completion_passes_over_views_that_cannot_be_read(db: Any) -> None:
    """A view with a blank in its name has words; one whose function is gone has none, and does not end the shell."""
    session = db.newSession()
    session.sql("CREATE TEMP VIEW `a b` AS SELECT 1 AS odd_one")
    session.sql("CREATE TABLE gone (x INT) USING parquet")
    session.sql("CREATE TEMP VIEW stale AS SELECT x AS never FROM gone")
    session.sql("DROP TABLE gone")
    words = _words(session)
    assert "odd_one" in words
    assert "stale" in words
    assert "never" not in words
