"""Write the generated pages of docs/reference from the tables in the code: `make reference`."""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from foldflight.cli.main import cli
from foldflight.errors import FoldflightError, pointer
from foldflight.spark.settings import session_table
from foldflight.sql import statements, windows

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
PROTO = "foldflight/v1/exchange.proto"
_HELP_WIDTH = 100

SERVER = """\
# Settings and metrics of a server

The tables on this page are written by `docs/generate.py` from `service/foldflight/server/run/settings.py` and
`service/foldflight/server/ops/metrics.py`. How a server works is in [Inside a server](../explanation/server.md).

## Settings

Each setting is a flag of `foldflight serve`, an environment variable and a key of a settings file. A flag takes
precedence over a variable, and a variable over the settings file that `--config` or `FOLDFLIGHT_CONFIG` names.

{settings}
### The tokens file

Each line of `tokens_file` has a token and then the functions that it opens: names or shell patterns, separated by
commas, spaces or tabs. A token alone opens all functions. Names that no function has are logged. Lines that begin with
`#` are comments.

    # the pricing job
    2f9c0e8d7b6a5f4e  weighted_avg, acme_*
    83b1c2d3e4f5a697

## Metrics

`/metrics` of `http_port` shows these metrics. Counts of all worker processes are added up. The number of values of each
label is bounded. The rules and the dashboard in [helm/foldflight/](../../helm/foldflight/) are checked against this
table.

{metrics}"""

SPARK = """\
# Versions of Spark, settings of a session and metrics of streams

The tables on this page are written by `docs/generate.py` from `service/foldflight/spark/versions/facts.py`,
`service/foldflight/spark/settings.py` and `service/foldflight/spark/metrics.py`.

## Versions

{versions}
What a version cannot do is refused when the query is built, with the version that can and the remedy. The code asks
PySpark what it has, not for its version, because platforms backport changes; only the grammar of SQL cannot be asked
for.

foldflight needs Python 3.11 or newer. PySpark says that it supports Python up to 3.11 in version 3.5, up to 3.13 in
4.0, and up to 3.14 from 4.1 on. The tests of all versions run on Python 3.11, the main ones of 4.3 on 3.14, too.

Before 4.1 Spark has no UDFs over Arrow arrays. There, `with_columns` passes all columns of the DataFrame through
Python; in SQL a function is called for each row, with the same results but slowly. 3.5 passes a NULL where arithmetic
fails unless `spark.sql.ansi.enabled` is set, which is the default of later versions.

## Settings

`foldflight.spark.configure(spark, row_bytes=1024, partitions=None, local_checkpoints=False)` sets these settings and
prints each one that it changes. The table shows the values for the default `row_bytes` and for `partitions=8`.
[Tune a session](../how-to/tune-a-session.md) tells how to choose them.

{settings}
## Metrics

The progress of a streaming query contains the values of each aggregation and epoch, in `observedMetrics` under
`foldflight <keys> > <outputs>`, with a number behind it (` #2`) if the process has used the name before.
`foldflight.spark.metrics.StreamMetrics` is a listener that exports them to Prometheus,
with the labels `query` (the query's name, or its id) and `aggregation`. The figure of a table that
`from_debezium(table=)` reads is under `foldflight_events <table>`, and its label is `table` in place of `aggregation`.

{metrics}"""

ERRORS = """\
# Errors

Every error of foldflight is a `FoldflightError` of one of four classes. The class tells what to do next, and the code
tells why. Codes are stable, so programs may depend on `error.code`. The text of an error ends with the place of its
code on this page; the message of a refused statement (`SqlError`) ends with the place in the statement:

```text
{example}
```

An action of Spark (`collect`, a running stream) raises Spark's own error, which has this one in its text:
`foldflight.spark.errors.error_of(error)` returns it, or None if the query failed for another reason.

This page is written by `docs/generate.py` from `service/foldflight/errors.py` and `docs/explanations.py`.

{classes}"""

API = """\
# Python API

What is not on this page is not part of the public API. Its entries are generated from the docstrings, and their list by
`docs/generate.py` from `__all__` of each module.

{modules}"""

MESSAGES = """\
# Messages of the protocol

This page is written by `docs/generate.py` from [the proto file](../../proto/foldflight/v1/exchange.proto).
[The wire contract](protocol.md) describes the Flight verbs, the columns, the order of frames and the duties of an
engine.

{file}

{messages}"""

COMMANDS = """\
# Commands

This page is written by `docs/generate.py` from the commands themselves.

{commands}"""

SQL = """\
# SQL

`foldflight.spark.sql(spark, text)`, `spark.sql` after `foldflight.spark.enable(spark)`, and the command
`foldflight sql` take statements of Spark SQL in which functions stand wherever Spark SQL has aggregates. The grammar of
the statements and windows below is written by `docs/generate.py` from `service/foldflight/sql/`.

## Statements about functions

```text
{statements}
```

`AS` is followed by the name of a function, by a module and a class, or by source code between `$$`. Source code may
define a class, or the functions `create_state`, `accumulate`, `retract`, `merge` and `finish`. A class needs no
decorator, and may be written [for another system](../how-to/bring-a-function.md); the statement declares its types.
`APPEND ONLY` declares that the function needs no `retract`. A name in backquotes may have any characters, and is then
called in backquotes; a word of SQL's grammar (`over`, `filter`, `in`) is no name without them. `USING LINK` names a
server that has the function, or that runs the source code.
With a link, a module and a class name the server's function of this name; if the server has none, the class is sent to
it as a signed bundle (`bundle_key` of `enable`, `--bundle-key-file` of the command).
`LANGUAGE java` names [a class in Java](../how-to/java-functions.md): the jar is behind
`USING LINK` or before the class, and with both, the server of the link is sent the jar.

## Scalar and table functions

```text
CREATE FUNCTION words(STRING) RETURNS TABLE (word STRING, at INT) LANGUAGE python AS $$
def words(text):
    for at, word in enumerate((text or "").split()):
        yield word, at
$$;
SELECT id, word FROM documents, LATERAL words(title);
SELECT id, word FROM documents LATERAL VIEW OUTER words(title) w AS word, at;
SHOW FOLDFLIGHT FUNCTIONS; DROP FUNCTION words;
```

`RETURNS` is followed by a type, or by `TABLE` and the columns. `AS` and `USING LINK` mean the same as in
`CREATE AGGREGATE`.
Spark knows these functions under their names, in expressions and behind `FROM` and `LATERAL`. Spark refuses functions
in Python in lambdas, in `VALUES`, and over columns of both sides in `ON` of an outer join: compute them in a subquery.
For a join, join the pairs in a subquery first, and these to the outer table by its key. In the arguments of an
aggregate of foldflight with `FILTER`, they and their own arguments are evaluated where the filter holds.
Spark's `LEFT JOIN LATERAL` keeps rows without a match only if it has a condition, so write `ON true`. In `sql`,
`name => value` is a direct argument; those that follow all columns may do without their names. Other statements with
`CREATE FUNCTION` and `DROP FUNCTION` are Spark's.

## Calls

```text
name ( [ DISTINCT ] argument, ... [ ORDER BY key [ ASC | DESC ], ... ] )
     [ FILTER ( WHERE condition ) ] [ OVER ( window ) ]
```

Calls may stand in subqueries and common table expressions, in `HAVING` and `ORDER BY`, in `GROUPING SETS`, `ROLLUP`,
`CUBE` and `PIVOT`, and in `CREATE TABLE ... AS` and `INSERT INTO ... SELECT`.

The names `sum`, `string_agg` and so on mean Spark's aggregates, unless foldflight's are registered with
`register(spark, functions, {{"string_agg": "my_string_agg"}})`. Functions take the arguments and types that they
declare. Spark accepts these forms for its own aggregates; functions of foldflight refuse them, also built-in ones of
the same meaning, here with `my_` before their names:

| Spark | with functions of foldflight |
|---|---|
| `count(DISTINCT a, b)` | `my_count(DISTINCT struct(a, b))`, which also counts rows with NULL in one of them |
| `string_agg(x, '-')` | `my_string_agg(x, delimiter => '-')` |
| `first(x) IGNORE NULLS` | `my_first(x, ignore_nulls => true)`, or `FILTER (WHERE x IS NOT NULL)` |
| `sum` of texts and of intervals | `my_sum(CAST(x AS DOUBLE))`; intervals as numbers of seconds or months |
| an interval of years and months as an argument | Arrow and Python have no such type; cast it |
| `count(t.*)`, which Spark refuses by default | `my_count(*)`, or the columns by their names |
| an aggregate in a script, `BEGIN ... END` | create a temporary view with it before, and read the view |
| an aggregate of the outer query within a subquery of HAVING | compute it in a subquery of FROM, and compare there |

## Plans

Spark parses and analyses each statement. A `SELECT` is evaluated by `group_by`, or by `over` if its calls have `OVER`,
if Spark confirms that the result is the same. Otherwise Spark collects the rows of each group or window frame into
lists, which are folded. `EXPLAIN FOLDFLIGHT SELECT ...` shows the plan of each `SELECT` (`fold`, `over` or `lists`),
with the reason, and whether Spark aggregates the rows of a fold itself ([lifted](../explanation/lift.md)).

`sql(spark, text, plan="lifted")` demands that it does, `plan="fold"` that Python folds the rows, and `plan="lists"`
that they are collected; `groups=5_000_000` is the hint of `group_by`. A statement for which the plan cannot be used is
refused with the reason.

`over` computes windows with PARTITION BY, ORDER BY and ROWS or RANGE, also named ones (WINDOW), with FILTER, several
in one `SELECT`, beside Spark's own functions with OVER, in expressions and in QUALIFY. Lists are for OVER beside GROUP
BY or an aggregate of all rows, beside subqueries in the same item, and for window frames that `over` refuses: they
cost the length of a window frame for each row.

## Changes in statements

Rows with kinds, such as the rows of `from_debezium`, retract others. With the option `row_kind="row_kind"` aggregates
of foldflight retract them. A statement that is right without it stays a changelog; one that would take a retraction for
a row is the error SIGNATURE, at its place:

| over rows with kinds | |
|---|---|
| SELECT, WHERE, UNION ALL, inner joins, LEFT and SEMI joins *of* them with others | as in Spark: a changelog |
| aggregates of foldflight in `SELECT ... FROM` or `FROM ... SELECT` | retract with `row_kind=`, else refused |
| aggregates of Spark, also with OVER and behind `\\|>`; PIVOT; aggregates in several SELECTs behind FROM | refused |
| an inner SELECT that leaves the kinds out, where the statement counts rows, or a join looks for them | refused |
| a SELECT that leaves the kinds out in INSERT, CREATE TABLE ... AS, CREATE VIEW and CACHE TABLE ... AS | refused |
| DISTINCT, GROUP BY without aggregates, UNION, INTERSECT, EXCEPT | refused |
| `IN (SELECT ...)`, EXISTS, queries as values, SEMI and ANTI joins *with* them | refused |
| DELETE and UPDATE with such queries; MERGE that does not name the kinds | refused |
| LEFT, RIGHT and FULL joins in which their columns may be NULL, also in parentheses | refused |
| functions of Spark with OVER, also in QUALIFY, unless WHERE or the window names the kinds | refused |
| LIMIT, OFFSET and TABLESAMPLE in inner queries, views and tables, unless WHERE names the kinds | refused |
| LIMIT and OFFSET of what the statement returns, and of aggregates of foldflight | as in Spark |
| with aggregates of foldflight: correlated queries, OVER, GROUPING SETS, ROLLUP, CUBE, `max_by` of Spark | refused |
| an inner join of two changelogs | refused in aggregates of foldflight, unless WHERE names the other's kinds |

In the place of refused ones read the rows that are left, `(SELECT k, f(v) FROM changed GROUP BY k)`, with an
aggregate `f` of foldflight and `row_kind="row_kind"`. A SELECT that names the column, above all in its WHERE, says
itself which changes count, and is Spark's. With `row_kind=None` all forms are, and take each change for a row.
Window functions stand over such rows, too: `SELECT *, rank() OVER (ORDER BY s) FROM (SELECT k, f(v) AS s ...)`. The
last row of each key needs no `row_number()`: changes of `upserts` and `from_debezium(keys=...)` retract the old one.
Beside an aggregate of foldflight `sum`, `count`, `avg` and others of Spark with a twin in foldflight retract, too. A
DataFrame in Python that has been limited or numbered before is not looked at.

## Streams

A query over a streaming view needs the fold plan. It ends with `EMIT CHANGES` (rows with row kinds) or
`EMIT ON WINDOW CLOSE` (the final row of each window); without either it gives updates. Aggregates over the changes of
another aggregate need two statements: `CREATE TEMPORARY VIEW v AS SELECT ... EMIT CHANGES`, and then
`sql(spark, "SELECT ... FROM v GROUP BY ...", row_kind="row_kind")`. Over updates, `WHERE` and `JOIN` are refused, and
over changes so is an outer `SELECT` that leaves `row_kind` out. In a batch `row_kind` retracts rows, too. Sorting and,
over changes, `DISTINCT`, `UNION` without `ALL` and `LIMIT` are refused. Closed windows are final rows: a second
statement may aggregate them, without `row_kind` and without further windows that close. Calls with `OVER`, ordered by
the column under the watermark, are computed for rows of a stream as by `over`: each row comes out once, when the
watermark has reached its time, so `EMIT CHANGES` is left out. Windows are Spark's
`window(...)` or these table functions:

```text
{windows}
```

A window closes when the watermark of its time passes its end. The watermark is defined where the stream is read, with
`df.withWatermark("time", "10 seconds")`, or in SQL:

```sql
SELECT window_start, weighted_avg(amount, qty) AS price
FROM TUMBLE((SELECT * FROM orders WATERMARK time DELAY OF INTERVAL '10' SECONDS), time, INTERVAL '5' MINUTES)
GROUP BY window_start, window_end EMIT ON WINDOW CLOSE
```

## In a session

- `register(spark, functions)` makes the functions of `connect(...)` known.
- `enable(spark, "catalog.sql")` lets `spark.sql` itself take these statements, and keeps the functions that they create
  in a file. `spark.sql(text, t=df)` takes them, too; with Spark Connect write a temporary view instead of `t=df`. The
  file is executed when it is read. Each statement changes its own function in it, so several sessions
  may use one file.
- `column(spark, "weighted_avg", "v", "w")` is a use of a function as a Column, for `df.groupBy(...).agg(...)`.

## On a terminal

```
foldflight sql --table flights=flights.parquet --functions examples.weighted_avg \\
    -e "SELECT origin, weighted_avg(arr_delay, distance) FROM flights WHERE arr_delay IS NOT NULL GROUP BY origin"
foldflight sql --table flights=flights.parquet --catalog catalog.sql          # a shell; -f report.sql runs a file
foldflight sql --table events=folder --watch -e "SELECT k, sum(v) FROM events GROUP BY k EMIT CHANGES"
```

[All options](commands.md#foldflight-sql).
"""


def server_page() -> str:
    """Return the page of settings and metrics of a server."""
    tables = _beside("tables")
    return SERVER.format(settings=tables.settings_table(), metrics=tables.metrics_table())


def spark_page() -> str:
    """Return the page of settings of a session and of metrics of streams."""
    tables = _beside("tables")
    return SPARK.format(
        versions=tables.versions_table(), settings=session_table(), metrics=tables.stream_metrics_table()
    )


def errors_page() -> str:
    """Return the page of errors, with a heading for each code."""
    sections, explanations = [], _beside("explanations").EXPLANATIONS
    for cls in FoldflightError.__subclasses__():
        meaning = (cls.__doc__ or "").partition("\n\n")[0]  # without the example
        sections.append(f"## {cls.__name__}\n\n{meaning}\n")
        for code in sorted(cls.codes):
            meaning, remedy = explanations[code]
            repeats = (
                "The same input raises it again, so the task is not repeated.\n\n" if code in cls.repeating else ""
            )
            sections.append(f"### {code}\n\n{meaning}\n\n{repeats}**What to do.** {remedy}\n")
    example = (
        "USER_CODE: accumulate raised TypeError: unsupported operand type(s) for *: 'NoneType' and 'int'\n"
        f"  function: weighted_avg\n  group: origin='JFK'\n{pointer('USER_CODE')}"
    )
    return ERRORS.format(example=example, classes="\n".join(sections))


def commands_page() -> str:
    """Return the page of the commands: the help texts."""
    sections = []
    for name, command in _commands(cli, "foldflight"):
        context = click.Context(command, info_name=name, terminal_width=_HELP_WIDTH, max_content_width=_HELP_WIDTH)
        sections.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return COMMANDS.format(commands="\n".join(sections))


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for part, each in sorted(command.commands.items()):
            yield from _commands(each, f"{name} {part}")


def sql_page() -> str:
    """Return the page of SQL: its grammar from the code, and what surrounds it."""
    # The grammar is all of the docstring between its first line and the prose behind the statements.
    paragraphs = (statements.__doc__ or "").strip().split("\n\n")
    grammar = "\n\n".join(each for each in paragraphs if each.startswith(("CREATE", "DROP", "SHOW")))
    windows_syntax = "\n".join(windows.SYNTAX.values())
    return SQL.format(statements=grammar, windows=windows_syntax)


def messages_page() -> str:
    """Return the page of the protocol's messages: fields and comments of the proto file."""
    file = _described()
    comments = {tuple(place.path): _text(place.leading_comments) for place in file.source_code_info.location}
    file_comment = comments.get((12,), "")
    sections = []
    for place, message in enumerate(file.message_type):
        sections += _message(message, (4, place), comments, "")
    for place, enum in enumerate(file.enum_type):
        sections.append(f"## {enum.name}\n\n{comments.get((5, place), '')}\n")
        rows = [
            f"| {value.number} | `{value.name}` | {_cell(comments.get((5, place, 2, at), ''))} |"
            for at, value in enumerate(enum.value)
        ]
        sections.append("\n".join(["| number | value | meaning |", "|---|---|---|", *rows, ""]))
    return MESSAGES.format(file=f"```text\n{file_comment}\n```", messages="\n".join(sections))


def _described() -> FileDescriptorProto:
    """Return the proto file with its comments, as protoc reads it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        includes = f"-I{ROOT / 'proto'}"
        if protoc.main(["protoc", includes, "--include_source_info", f"--descriptor_set_out={out}", PROTO]):
            raise SystemExit(f"protoc cannot read {PROTO}")
        return FileDescriptorSet.FromString(out.read_bytes()).file[0]


def _message(
    message: DescriptorProto, path: tuple[int, ...], comments: dict[tuple[int, ...], str], within: str
) -> list[str]:
    """Return the sections of a message and of the messages that are declared in it."""
    name = f"{within}{message.name}"
    sections = [f"## {name}\n\n{comments.get(path, '')}\n"]
    entries = {each.name: each for each in message.nested_type if each.options.map_entry}
    if message.field:
        rows = [
            f"| {field.number} | `{field.name}` | {_type(field, entries)} | {_cell(comments.get((*path, 2, at), ''))} |"
            for at, field in enumerate(message.field)
        ]
        sections.append("\n".join(["| number | field | type | meaning |", "|---|---|---|---|", *rows, ""]))
    for place, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            sections += _message(nested, (*path, 3, place), comments, f"{name}.")
    return sections


def _type(field: FieldDescriptorProto, entries: dict[str, DescriptorProto]) -> str:
    plain = field.type_name.rpartition(".")[2]
    if plain in entries:
        key, value = (_type(each, {}) for each in entries[plain].field)
        return f"map of {key} to {value}"
    name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    shown = f"[{plain}](#{plain.lower()})" if field.type_name else name
    return f"repeated {shown}" if field.label == FieldDescriptorProto.LABEL_REPEATED else shown


def _text(comment: str) -> str:
    return "\n".join(line.removeprefix(" ").rstrip() for line in comment.strip("\n").splitlines())


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


# Modules of the public API, each with the names that are listed. None: all names that it exports.
API_MODULES: dict[str, tuple[str, ...] | None] = {
    "foldflight": None,
    "foldflight.functions.flink": None,
    "foldflight.spark": None,
    "foldflight.spark.java": ("prepare_local",),
    "foldflight.spark.errors": ("error_of",),
    "foldflight.spark.metrics": ("StreamMetrics",),
    "foldflight.cli.flights": ("write_flights",),
    "foldflight.testing": None,
    "foldflight.testing.conformance": None,
}
# What a reader needs first stands first. Other names follow: functions, classes, errors.
API_FIRST = ("udaf", "udf", "udtf", "connect", "configure", "group_by", "over", "sql", "register", "check_laws")
# Constants are documented where they are defined.
API_CONSTANTS = {
    "foldflight.spark": ("foldflight.spark.rowkinds.DELTA_CHANGES", "foldflight.spark.windows.PROCESSING_TIME"),
    "foldflight.testing": ("foldflight.testing.targets.TARGET_COLUMNS", "foldflight.testing.targets.TARGET_KEYS"),
}


def api_page() -> str:
    """Return the page of the API: a directive for each public name. Sphinx fills them from the docstrings."""
    sections = []
    for module, chosen in API_MODULES.items():
        found = importlib.import_module(module)
        names = [name for name in chosen or found.__all__ if not name.startswith("__")]
        directives = sorted(filter(None, (_directive(module, name, getattr(found, name)) for name in names)))
        lines = [text for _, _, text in directives]
        lines += [f".. autodata:: {name}" for name in API_CONSTANTS.get(module, ())]
        whole = [f".. automodule:: {module}"] if chosen is None else []
        entries = "\n\n".join([*whole, *lines])
        sections.append(f"## {module}\n\n```{{eval-rst}}\n{entries}\n```\n")
    return API.format(modules="\n".join(sections))


def _directive(module: str, name: str, value: object) -> tuple[int, str, str] | None:
    """Return the directive of a name after what it is sorted by. None: a constant."""
    place = API_FIRST.index(name) if name in API_FIRST else len(API_FIRST)
    if isinstance(value, type):
        kind = "exception" if issubclass(value, Exception) else "class"
        rank = place + ("class", "exception").index(kind) + 1
        return rank, name.lower(), f".. auto{kind}:: {module}.{name}\n   :members:"
    return (place, name.lower(), f".. autofunction:: {module}.{name}") if callable(value) else None


def types_page() -> str:
    """Return the page of types."""
    page: str = _beside("type_table").types_page()
    return page


def compatibility_page() -> str:
    """Return the page of compatibility."""
    page: str = _beside("tested").compatibility_page()
    return page


def _beside(name: str) -> Any:
    """Return a module beside this file, which may be run as a program, outside of its package."""
    sys.path.append(str(ROOT))
    return importlib.import_module(f"docs.{name}")


PAGES = {
    "api.md": api_page,
    "server.md": server_page,
    "spark.md": spark_page,
    "errors.md": errors_page,
    "commands.md": commands_page,
    "sql.md": sql_page,
    "messages.md": messages_page,
    "types.md": types_page,
    "compatibility.md": compatibility_page,
}

if __name__ == "__main__":
    for file_name, page in PAGES.items():
        (FOLDER / file_name).write_text(page(), encoding="utf-8")
