"""`foldflight sql`: statements over files and tables, from the command line, from a file or from a shell."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from rich.console import Console
from rich.table import Table

from foldflight.cli.local_session import errors_as_text, local_spark, spark_progress
from foldflight.cli.terminal import target_options
from foldflight.client import connect
from foldflight.client.connect import EMBEDDED
from foldflight.errors import FoldflightError, RejectedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery  # type: ignore[attr-defined, unused-ignore]


EXIT_REFUSED = 1
_T = TypeVar("_T")
_ROWS_MAX = 50
_CANCEL_S = 1  # seconds between repeated cancellations of a statement
_FAILURE_S = 1  # seconds between checks of a watched stream for failures
_STREAM_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_SETTINGS = {**_STREAM_SETTINGS, "spark.sql.shuffle.partitions": "4", "spark.sql.session.timeZone": "UTC"}
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".orc": "orc"}
_HELP = r"""Statements end with ; and may have several lines. Ctrl-C stops a statement.
  \d          tables and views       \d NAME   columns of a table or view
  \df         functions of foldflight
  \timing     show the seconds of each statement
  \?, help    this help               \q, quit, exit, Ctrl-D   quit
EXPLAIN FOLDFLIGHT SELECT ... shows how each part of a query is computed."""


@click.command()
@click.option("-e", "--execute", "texts", multiple=True, metavar="TEXT", help="Run these statements. Can be repeated.")
@click.option(
    "-f", "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Run the statements in FILE."
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME=PATH",
    help="Read a Parquet, CSV, JSON or ORC file or folder as a table. Can be repeated.",
)
@click.option(
    "--functions", "targets", multiple=True, metavar="TARGET", help="A module, or grpc://host:port. Can be repeated."
)
@click.option(
    "--catalog",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Run the statements in this file at the start, and store CREATE AGGREGATE and CREATE FUNCTION in it.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Read folders as streams: new files are new rows. Print changes until Ctrl-C.",
)
@click.option(
    "--output",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How rows are printed.",
)
@click.option("--timing", is_flag=True, help="Show the seconds of each statement.")
@click.option(
    "--bundle-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The key that signs source code for servers (USING LINK).",
)
@target_options
def sql(
    *,
    texts: Sequence[str],
    file: Path | None,
    tables: Sequence[str],
    targets: Sequence[str],
    catalog: Path | None,
    watch: bool,
    output: str,
    timing: bool,
    bundle_key_file: Path | None,
    **connection: Any,
) -> None:
    """Run SQL with functions in Python over files and tables.

    Example: foldflight sql --table t=t.parquet --functions my_module -e "SELECT k, my_avg(v) FROM t GROUP BY k"

    Without -e and -f it starts a shell.
    """
    _check_spark()
    pairs = [_table_of(each) for each in tables]
    options = {name: value for name, value in connection.items() if value is not None}
    link = dict(options)
    if bundle_key_file is not None:
        link["bundle_key"] = bundle_key_file.read_text(encoding="utf-8").strip()
    functions = [_functions_of(each, options) for each in targets]
    with local_spark("foldflight sql", _SETTINGS, log_level="off") as spark:
        from foldflight.sql import enable, register

        enable(spark, catalog, **link)
        for each in functions:
            register(spark, each)
        for name, path in pairs:
            _add_table(spark, name, path, is_stream=watch)
        runner = _Runner(spark, Console(), output=output, timing=timing)
        scripts: list[tuple[str, Path | None]] = [(text, None) for text in texts]
        if file is not None:
            scripts.append((file.read_text(encoding="utf-8"), file))
        if not scripts:
            _shell(runner)
        elif not all(_run_script(runner, script, source) for script, source in scripts):
            click.get_current_context().exit(EXIT_REFUSED)


def _check_spark() -> None:
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise RejectedError("SETTINGS", "`foldflight sql` needs PySpark; install it: pip install 'foldflight[sql]'")


def _table_of(definition: str) -> tuple[str, Path]:
    name, equals, path = definition.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{definition!r} must have the form NAME=PATH", param_hint="--table")
    if not Path(path).exists():
        raise click.BadParameter(f"there is no file or folder {path!r}", param_hint="--table")
    return name, Path(path).resolve()  # Spark may have another working directory


def _functions_of(target: str, connection: dict[str, Any]) -> Any:
    is_server = target.startswith(("grpc://", "grpc+tls://"))
    return connect(target, **connection) if is_server else connect(EMBEDDED + target.removeprefix(EMBEDDED))


def _add_table(spark: SparkSession, name: str, path: Path, *, is_stream: bool) -> None:
    """Create a temporary view of a file or folder. As a stream, it reads files that are added to the folder."""
    from foldflight.spark.columns import quote_name

    first = next((each for each in sorted(path.rglob("*")) if each.suffix in _FORMATS), path) if path.is_dir() else path
    if first.suffix not in _FORMATS:
        known_formats = ", ".join(_FORMATS)
        raise click.BadParameter(
            f"the format of {str(path)!r} is unknown; known are {known_formats}", param_hint="--table"
        )
    format_ = _FORMATS[first.suffix]
    options = {"header": "true", "inferSchema": "true"} if format_ == "csv" else {}
    if is_stream and not path.is_dir():
        raise click.BadParameter(f"--watch needs a folder, but {str(path)!r} is a file", param_hint="--table")
    with errors_as_text():
        df = spark.read.format(format_).options(**options).load(str(path))
    if is_stream:
        df = spark.readStream.schema(df.schema).format(format_).options(**options).load(str(path))
    df.createOrReplaceTempView(quote_name(name))


def _statements(script: str) -> Iterator[str]:
    from foldflight.sql import split_statements

    statements, rest = split_statements(script)
    yield from statements
    if rest.strip():
        yield rest.strip()


def _run_script(runner: _Runner, script: str, file: Path | None) -> bool:
    """Run statements until one fails, and return whether all succeeded. Errors in a file count lines from its start."""
    at = 0
    for statement in _statements(script):
        at = script.index(statement, at)
        if not runner.run(statement, None if file is None else _Location(str(file), script, at)):
            return False
        at += len(statement)
    return True


class _Location(NamedTuple):
    """The location of a statement in a file.

    Args:
        file: The name of the file.
        script: The text of the file.
        start: The position of the statement.
    """

    file: str
    script: str
    start: int

    def describe(self, error: Exception) -> str:
        """Return the text of an error, with the file, and the line in it."""
        from foldflight.sql import SqlError

        if isinstance(error, SqlError):
            error = SqlError(error.message, self.script, self.start + error.start, self.start + error.stop)
            return f"{self.file}: {error}"
        line = self.script.count("\n", 0, self.start) + 1
        return f"{self.file}, statement at line {line}: {_message_of(error)}"


def _message_of(error: Exception) -> str:
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


class _Runner:
    """Runs statements, and prints their results and errors.

    Args:
        spark: The session.
        console: Where results are printed.
        output: `table`, `csv` or `json`.
        timing: Whether the seconds of each statement are printed.
    """

    def __init__(self, spark: SparkSession, console: Console, *, output: str, timing: bool) -> None:
        self.spark = spark
        self.console = console
        self.output = output
        self.timing = timing

    def run(self, statement: str, location: _Location | None = None) -> bool:
        """Run a statement, and return whether it succeeded."""
        from foldflight.sql import placed_errors

        start = time.perf_counter()
        try:
            with (
                errors_as_text(),
                placed_errors(self.spark, statement),
                spark_progress(self.spark, self.console, "running"),
            ):
                df, rows = _interruptible(lambda: self._rows(statement), self.spark.sparkContext.cancelAllJobs)
            if df.isStreaming:
                with errors_as_text(), placed_errors(self.spark, statement):
                    self._watch(statement, df)
            else:
                self._print(df.columns, [tuple(row) for row in rows])
        except (FoldflightError, click.ClickException) as error:
            text = _message_of(error) if location is None else location.describe(error)
            click.echo(f"foldflight: {text.partition('JVM stacktrace:')[0].strip()}", err=True)
            return False
        if self.timing:
            click.echo(f"{time.perf_counter() - start:.2f} s", err=True)
        return True

    def _rows(self, statement: str) -> tuple[DataFrame, list[Any]]:
        """Return the result of a statement, and its rows unless it is a stream."""
        df = self.spark.sql(statement)
        first_rows = df.limit(_ROWS_MAX + 1) if self.output == "table" else df
        return df, [] if df.isStreaming else first_rows.collect()

    def _print(self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        if not columns or (list(columns) == ["ok"] and not rows):  # a statement without a result, such as CREATE
            return
        if self.output == "csv":
            text = io.StringIO()
            writer = csv.writer(text)
            writer.writerows([columns, *rows])
            click.echo(text.getvalue(), nl=False)
        elif self.output == "json":
            for row in rows:
                click.echo(json.dumps(dict(zip(columns, row, strict=True)), default=str, ensure_ascii=False))
        else:
            self._print_table(columns, rows)

    def _print_table(self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        table = Table(*columns)
        for row in rows[:_ROWS_MAX]:
            table.add_row(*("NULL" if value is None else str(value) for value in row))
        if sys.stdout.isatty():
            self.console.print(table)
        else:  # another program reads the output, so values are not shortened
            Console(width=10_000).print(table)
        if len(rows) > _ROWS_MAX:
            click.echo(f"only the first {_ROWS_MAX} rows are shown; --output csv shows all", err=True)

    def _watch(self, statement: str, df: DataFrame) -> None:
        """Print each epoch of a stream until it ends, an epoch fails, or Ctrl-C. Raises the error of the epoch."""
        failures: list[Exception] = []

        def show(batch: DataFrame, epoch: int) -> None:
            try:
                rows = [] if failures else [tuple(row) for row in batch.collect()]
            except Exception as error:  # noqa: BLE001 - Spark would wrap it in the plan and several tracebacks
                failures.append(error)
                return
            if rows:
                click.echo(f"epoch {epoch}", err=True)
                self._print(batch.columns, rows)

        query = df.writeStream.outputMode(_output_mode(statement)).foreachBatch(show).start()
        try:
            _interruptible(lambda: _await(query, failures), query.stop)
        except KeyboardInterrupt:
            click.echo()
        finally:
            query.stop()


def _await(query: StreamingQuery, failures: Sequence[Exception]) -> None:
    """Wait until a stream ends, or one of its epochs has failed. Raises the error of the epoch, or of the stream."""
    try:
        while not failures and not query.awaitTermination(_FAILURE_S):
            pass
    except Exception:
        if not failures:  # after a failed epoch, the stream fails because the epoch is not committed
            raise
    if failures:
        raise failures[0]


def _interruptible(work: Callable[[], _T], cancel: Callable[[], object]) -> _T:
    """Run work in another thread, so that Ctrl-C does not interrupt it, and return the result.

    A call of the JVM that Ctrl-C broke off would leave its answer to the next call of the same thread.

    Args:
        work: The work.
        cancel: Makes the work end soon. It is called at Ctrl-C; KeyboardInterrupt is raised when the work has ended.
    """
    future: Future[_T] = Future()
    thread = Thread(target=_complete, args=(future, work), name="foldflight-statement")
    try:
        thread.start()
        return future.result()
    except KeyboardInterrupt:
        while thread.is_alive():  # a job that starts after the first cancellation must be cancelled as well
            cancel()
            thread.join(_CANCEL_S)
        raise


def _complete(future: Future[_T], work: Callable[[], _T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it is raised by `future.result`
        future.set_exception(error)


def _output_mode(statement: str) -> str:
    """Return Spark's output mode for a stream. It requires `append` for windows that are emitted when they close."""
    from foldflight.sql import emit_of

    return "append" if emit_of(statement) == "append" else "update"


def _shell(runner: _Runner) -> None:
    """Read statements from a terminal, with history and completion, or from standard input."""
    if not sys.stdin.isatty():
        for statement in _statements(sys.stdin.read()):
            if not runner.run(statement):
                click.get_current_context().exit(EXIT_REFUSED)
        return
    ask = _prompt(runner.spark)
    click.echo(r"foldflight sql: statements end with ;  \? shows help, \q quits")
    buffer = ""
    while True:
        try:
            line = ask("       ...> " if buffer else "foldflight> ")
        except KeyboardInterrupt:
            buffer = ""
            continue
        except EOFError:
            return
        word = line.strip().rstrip(";").rstrip()
        if not buffer and word.lower() in _QUIT:
            return
        if not buffer and (word.startswith("\\") or word.lower() == "help"):
            _command(runner, word)
            continue
        buffer = _run_complete(runner, buffer + line + "\n")


def _run_complete(runner: _Runner, buffer: str) -> str:
    """Run the complete statements of a text, and return the rest."""
    from foldflight.sql import SqlError, split_statements

    try:
        statements, rest = split_statements(buffer)
    except SqlError:
        return buffer  # a string or comment that continues on the next line
    try:
        for statement in statements:
            runner.run(statement)
    except KeyboardInterrupt:
        click.echo("\nstopped", err=True)
        return ""
    return rest


def _command(runner: _Runner, line: str) -> None:
    name, _, argument = line.partition(" ")
    if name == "\\d":
        runner.run(f"DESCRIBE {argument}" if argument else "SHOW TABLES")
    elif name == "\\df":
        runner.run("SHOW AGGREGATES")
        runner.run("SHOW FOLDFLIGHT FUNCTIONS")
    elif name == "\\timing":
        runner.timing = not runner.timing
        click.echo(f"timing is {'on' if runner.timing else 'off'}")
    else:
        click.echo(_HELP)


def _prompt(spark: SparkSession) -> Any:
    """Return a function that asks for a line. Without prompt_toolkit there is no history and no completion."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import Completer, Completion
        from prompt_toolkit.history import FileHistory
    except ImportError:
        click.echo("for history and completion: pip install 'foldflight[sql]'", err=True)
        return input

    class Words(Completer):  # type: ignore[misc, unused-ignore]
        words: Sequence[str] = ()

        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Any]:  # noqa: ARG002
            word = document.get_word_before_cursor(WORD=False)
            if word:
                for each in self.words:
                    if each.lower().startswith(word.lower()):
                        yield Completion(each, start_position=-len(word))

    folder = Path(click.get_app_dir("foldflight"))
    folder.mkdir(parents=True, exist_ok=True)
    words = Words()
    session: Any = PromptSession(history=FileHistory(str(folder / "sql_history")), completer=words)

    def ask(prompt: str) -> str:
        words.words = _words(spark)  # once, because Spark is too slow to ask at each key
        return str(session.prompt(prompt))

    return ask


_QUIT = ("\\q", "quit", "exit")
_KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "USING", "WITH"),
    *("DISTINCT", "FILTER", "CREATE AGGREGATE", "RETURNS", "APPEND ONLY", "LANGUAGE python", "USING LINK"),
    *("DROP AGGREGATE", "SHOW AGGREGATES", "EXPLAIN FOLDFLIGHT", "EMIT CHANGES", "EMIT ON WINDOW CLOSE"),
    *("CREATE FUNCTION", "RETURNS TABLE", "DROP FUNCTION", "SHOW FOLDFLIGHT FUNCTIONS", "LATERAL", "LATERAL VIEW"),
    *("TUMBLE", "HOP", "CUMULATE", "SESSION", "DESCRIPTOR", "INTERVAL"),
)


def _words(spark: SparkSession) -> list[str]:
    """Return the words for completion: keywords, functions, tables and their columns."""
    from foldflight.sql.catalog import catalog_of

    tables = [table.name for table in spark.catalog.listTables()]
    columns = {column for table in tables for column in _columns(spark, table)}
    catalog = catalog_of(spark)
    return [*tables, *sorted(columns), *sorted({*catalog.entries, *catalog.mapped}), *_KEYWORDS]


def _columns(spark: SparkSession, table: str) -> list[str]:
    """Return the columns of a table or view; none if Spark cannot read it, such as a view of a dropped table."""
    from pyspark.errors import PySparkException

    from foldflight.spark.columns import quote_name

    try:
        return list(spark.table(quote_name(table)).columns)
    except PySparkException:
        return []
