"""SQL in a Spark session: `sql`, `register`, `enable` and `column`."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from foldflight.client import Aggregate, FunctionHandle, Functions
from foldflight.client.client_logs import set_up_logger
from foldflight.engine.over.over_stream import ttl_us_of
from foldflight.errors import RejectedError
from foldflight.functions import FunctionKind, Registry
from foldflight.spark.arguments import require_session
from foldflight.spark.columns import quote_name, reject_nanoseconds
from foldflight.spark.rowkinds import UNSET, kinds_in
from foldflight.spark.versions.sessions import format_statement, is_remote, is_spark, mute_query_log
from foldflight.sql.analysis import SPARK_ERRORS, Analysis, SparkSqlError, sql_error_of, view_name
from foldflight.sql.blocks import TABLE_CHANGES, parse, parse_statement, starts_query
from foldflight.sql.calls import GRAMMAR, calls_in
from foldflight.sql.catalog import Catalog, Entry, ScalarEntry, catalog_of, plain_sql
from foldflight.sql.changes import refuse_changes_as_rows
from foldflight.sql.list_plan import uses_functions
from foldflight.sql.planner import Plan, Planner
from foldflight.sql.scalar_calls import check_joins, check_types, rewrite_scalar
from foldflight.sql.statements import empty_result, name_of, run_statement
from foldflight.sql.text import Span, SqlError, Text, tokens

_EMITS: Final = (("EMIT ON WINDOW CLOSE", "append"), ("EMIT CHANGES", "changelog"))
_AFTER_WITH: Final = ("SCHEMA", "METRICS", "NO")  # CREATE VIEW ... WITH SCHEMA BINDING, for example
_STREAM_OPTIONS: Final = ("row_kind", "row_kinds", "materialize", "allowed_lateness_s", "buckets", "strict", "idle")
_EXPLAINED: Final = "line int, block string, plan string, why string"
_Session = TypeVar("_Session", bound=SparkSession)


@reject_nanoseconds("Spark cannot plan the statement")
def sql(
    spark: SparkSession,
    text: str,
    args: Mapping[str, Any] | list[Any] | tuple[Any, ...] | None = None,
    *,
    explain: bool = False,
    plan: Plan = "auto",
    groups: int | None = None,
    **stream: Any,
) -> DataFrame:
    """Run a statement of Spark SQL that may use functions of foldflight wherever SQL has aggregates.

    Functions come from `register`, CREATE AGGREGATE and CREATE FUNCTION ... LANGUAGE python. Other
    statements go to Spark unchanged.

    Each SELECT block is folded by `group_by` if Spark confirms that this means the same; otherwise the rows of each
    group are collected into lists, which are folded. `EXPLAIN FOLDFLIGHT` before a query, or `explain=True`, tells
    which plan each block has, and why.

    Over a streaming view the result is a stream: of updates, of changes with `EMIT CHANGES` behind the query, or of
    closed windows with `EMIT ON WINDOW CLOSE`.

    Args:
        spark: The session, of classic PySpark or of Spark Connect.
        text: One statement.
        args: The values of its parameters, as for `spark.sql`.
        explain: Whether to return the plans in place of the result.
        plan: One plan for all blocks. `lifted`: Spark aggregates the rows, which are not passed to Python; every
            function must lift. `fold`: Python folds the rows. `lists`: the rows of each group are collected. `auto`
            chooses for each block, as `group_by` does.
        groups: For batches: about how many groups there are, as for `group_by`.
        stream: Options of `group_by` for streams: `row_kind`, `row_kinds`, `materialize`, `allowed_lateness_s`,
            `buckets`, `strict`; and of `over`: `buckets`, `idle`.

    Returns:
        DataFrame: The result. It is computed when an action needs it.

    Raises:
        SqlError: A RejectedError with the position in the text.
        RejectedError: SCHEMA_MISMATCH, for a column of a type that PySpark has no name for: TIMESTAMP_NTZ(9).
        RetryableError: UNREACHABLE or DEADLINE, if no server answers.

    >>> from foldflight.spark import sql
    >>> created = sql(spark, '''
    ...     CREATE AGGREGATE product(x DOUBLE) RETURNS DOUBLE APPEND ONLY LANGUAGE python AS $$
    ...     class Product:
    ...         def create_accumulator(self) -> float: return 1.0
    ...         def accumulate(self, product, x): return product * x
    ...         def get_value(self, product): return product
    ...     $$''')
    >>> sql(spark, "SELECT product(x) AS product FROM VALUES (2D), (3D) AS t(x)").show()
    +-------+
    |product|
    +-------+
    |    6.0|
    +-------+
    """
    _check_arguments(spark, text, plan)
    whole = Text(_without_end(text))
    catalog = catalog_of(spark)
    before = catalog.statements()
    answer = run_statement(spark, catalog, whole)
    if answer is not None:
        _save(catalog, before)
        return answer
    begin = 0
    if whole.says(0, "EXPLAIN", "FOLDFLIGHT"):
        explain, begin = True, 2
    span, emit = _emit(whole, Span(begin, len(whole)))
    _refuse_more(whole)
    unknown_option = next((name for name in stream if name not in _STREAM_OPTIONS), None)
    if unknown_option is not None:
        raise whole.error(f"sql has no option {unknown_option}; it has {', '.join(_STREAM_OPTIONS)}", Span(0, 1))
    if stream.get("idle") is not None:
        try:
            ttl_us_of(stream["idle"])
        except RejectedError as error:
            raise whole.error(error.message, Span(0, 1)) from None
    analysis = Analysis(spark, catalog, whole, args)
    _refuse_script(whole, catalog)
    is_rewritten = rewrite_scalar(analysis)
    if (query_at := _query_start(whole, span)) is not None and uses_functions(whole, catalog.mapped):
        is_rewritten |= _check_mapped(analysis, Span(query_at, span.stop))
    is_plain = emit is None and not uses_functions(whole, catalog.names) and not _has_windows(whole)
    start = None if is_plain else _query_start(whole, span)
    if is_plain and not explain and stream.get("row_kind", UNSET) is not None:
        _refuse_changes_as_rows(analysis, span)
    if start is None and any(value is not None for value in stream.values()):
        raise whole.error(
            f"{', '.join(stream)} has no effect: the statement is no query with aggregates of foldflight; leave it out",
            Span(0, 1),
        )
    if is_plain:
        if explain:
            query = " ".join(whole.slice(Span(begin, len(whole))).split())
            _check_plain(analysis, begin)
            return spark.createDataFrame([(1, query, "spark", "it uses no aggregate of foldflight")], _EXPLAINED)
        return _without_aggregates(analysis, args, is_rewritten=is_rewritten)
    if start is None:
        return _without_query(analysis, args, is_rewritten=is_rewritten)
    options = {**stream, **({} if emit is None else {"emit": emit}), **({} if groups is None else {"groups": groups})}
    if plan in ("fold", "lifted"):
        options["plan"] = plan
    built_in = catalog.embedded_functions["count"] if emit is not None else None
    planner = Planner(analysis, plan, options, built_in)
    with analysis.keeping_views():
        result = planner.result(parse(whole, Span(start, span.stop)))
    if plan in ("fold", "lifted") and (lists := [each for each in planner.decisions if each.plan == "lists"]):
        raise whole.error(f"the {plan} plan was asked for, and cannot be used: {lists[0].why}", Span(start, start + 1))
    if explain:
        return _explain(spark, planner)
    return _finish(analysis, Span(begin, start), result)


def _check_arguments(spark: SparkSession, text: str, plan: Plan) -> None:
    """Raise RejectedError SIGNATURE or SETTINGS for arguments of `sql` that are something else."""
    require_session(spark, "sql")
    if not isinstance(text, str):
        raise RejectedError("SIGNATURE", f"sql takes the text of a statement, and this is {text!r}")
    if plan not in get_args(Plan):
        raise RejectedError("SETTINGS", f"there is no plan {plan!r}; plan is 'auto', 'fold', 'lifted' or 'lists'")


def register(spark: SparkSession, functions: Functions, names: Mapping[str, str] | None = None) -> None:
    """Make functions known to the SQL of a session.

    `sql` can use aggregates wherever SQL has aggregates. Plain `spark.sql` knows those with fixed types as aggregates,
    with Spark's restrictions for aggregates in Python: not beside built-in ones, and slow with many groups. Spark's
    own functions keep their names, so the built-in functions of foldflight are not registered by default.

    Both know scalar functions in all expressions, and table functions behind FROM and LATERAL. Direct arguments,
    `scale(x, factor => 2)`, and LATERAL VIEW are for `sql`.

    Args:
        spark: The session.
        functions: The result of `connect`.
        names: The functions to register, with their names in SQL: `{"sum": "exact_sum"}`. Default:
            all aggregates besides the built-in ones, and the scalar and table functions that have fixed types. Those
            with the name of a function of Spark, and those without arguments, are left out, which is logged.

    Raises:
        RejectedError: UNKNOWN_FUNCTION; SIGNATURE for a scalar or table function whose types depend on its arguments,
            or that has the name of a function of Spark.

    >>> from foldflight import connect
    >>> from foldflight.spark import register, sql
    >>> register(spark, connect("embedded:"), {"sum": "exact_sum"})
    >>> sql(spark, "SELECT exact_sum(x) FROM VALUES (1e20D), (1D), (-1e20D) AS t(x)").show()
    +------------+
    |exact_sum(x)|
    +------------+
    |         1.0|
    +------------+
    """
    require_session(spark, "register")
    if not isinstance(functions, Functions):
        raise RejectedError(
            "SIGNATURE", f"register takes the result of connect, as in register(spark, connect(...)), not {functions!r}"
        )
    catalog = catalog_of(spark)
    chosen_names = (
        {name: name for name in functions if _has_fixed_types(functions[name])} if names is None else dict(names)
    )
    if names is None:
        _leave_out_those_of_spark(spark, functions, chosen_names)
    _warn(
        [name for name in chosen_names.values() if name.lower() in GRAMMAR],
        "{names}: a word of SQL's grammar, so a call needs backquotes: `{first}`(...); or register it under another "
        "name: register(spark, functions, {{{first!r}: {other!r}}})",
    )
    for function, name in chosen_names.items():
        handle = functions[function]
        if handle.info.kind is FunctionKind.AGGREGATE:
            catalog.release(name.lower())
            catalog.register(spark, Entry.of(name, handle, "registered"))
        else:
            catalog.register_scalar(spark, ScalarEntry.of(name, handle, "registered"))


def _has_fixed_types(handle: FunctionHandle) -> bool:
    """Return whether a function has types without arguments, or is an aggregate, which may take them from each call."""
    info = handle.info
    if info.kind is FunctionKind.AGGREGATE:
        return info.name not in Registry()
    return bool(info.input_types) and info.result_type is not None


def _leave_out_those_of_spark(spark: SparkSession, functions: Functions, chosen_names: dict[str, str]) -> None:
    """Leave out scalar and table functions that the session cannot have, and log why.

    Spark would call its own function of a name, a UDF of Spark needs an argument, and Sail has no statement for table
    functions.
    """
    of_spark = catalog_of(spark).names_of_spark(spark)
    scalar = [name for name in functions if functions[name].info.kind is not FunctionKind.AGGREGATE]
    taken_names = [name for name in scalar if name in chosen_names and name.lower() in of_spark]
    tables = [
        name for name in chosen_names if name not in taken_names and functions[name].info.kind is FunctionKind.TABLE
    ]
    tables = [] if is_spark(spark) else tables
    for name in (*taken_names, *tables):
        del chosen_names[name]
    _warn(
        taken_names,
        "Spark has functions named {names}, so these are not registered; name them in another call: register(spark, "
        "functions, {{{first!r}: {other!r}}})",
    )
    _warn(tables, "SQL of Sail cannot call table functions, so these are not registered: {names}; use join_lateral")
    _warn(
        [name for name in scalar if not functions[name].info.input_names],
        "a UDF of Spark needs an argument, so these are not registered: {names}; give them one",
    )


def _warn(names: Sequence[str], text: str) -> None:
    """Log what holds for some functions; the text may name all, the first one, and another name for it."""
    if names:
        warning = text.format(names=", ".join(names), first=names[0], other=f"my_{names[0]}")
        set_up_logger("foldflight.sql", logging.WARNING).warning("%s", warning)


def enable(spark: _Session, catalog: str | os.PathLike[str] | None = None, **connection: Any) -> _Session:
    """Let `spark.sql` of a session take functions of foldflight, as `sql` does.

    Args:
        spark: The session. It is changed, and returned.
        catalog: A file that keeps CREATE AGGREGATE and CREATE FUNCTION statements. Those in it are executed now, with
            the source code that they contain; later ones are added, and dropped ones are removed. The file need not
            exist.
        connection: Arguments of `connect` for `USING LINK`: `bundle_key`, `token`, `tls_ca`...

    Raises:
        SqlError: If a statement of the file is refused.
        RejectedError: SETTINGS, if the file cannot be read or written.

    >>> from foldflight import connect
    >>> from foldflight.spark import enable, register
    >>> session = enable(spark.newSession())
    >>> register(session, connect("embedded:"), {"string_agg": "texts"})
    >>> session.sql("SELECT texts(x ORDER BY x DESC) AS texts FROM VALUES ('a'), ('b') AS t(x)").show()
    +-----+
    |texts|
    +-----+
    |  b,a|
    +-----+
    """
    require_session(spark, "enable")
    catalog_here = catalog_of(spark)
    catalog_here.connect_with(connection)
    if catalog is not None:
        _load(spark, catalog_here, Path(catalog))

    def with_functions(sqlQuery: str, args: Any = None, **views: Any) -> DataFrame:  # noqa: N803 - as Spark names it
        return _with_values(spark, sqlQuery, args, views) if views else sql(spark, sqlQuery, args)

    spark.sql = with_functions  # type: ignore[method-assign]
    return spark


def _with_values(spark: SparkSession, text: str, args: Any, values: Mapping[str, Any]) -> DataFrame:
    """Run a statement with DataFrames and values in braces, as `spark.sql(text, t=df)`.

    Raises:
        RejectedError: SETTINGS in Spark Connect, where functions of foldflight need a view in place of a DataFrame.
    """
    if is_remote(spark):
        plain = Text(re.sub(r"\{\w+\}", "t", text))
        if uses_functions(plain, catalog_of(spark).names):
            raise RejectedError(
                "SETTINGS",
                f"Spark Connect does not take {', '.join(values)} beside functions of foldflight; write "
                "df.createOrReplaceTempView('t'), and t in the statement",
            )
        _refuse_changes_in_braces(spark, text, args, values)
        return plain_sql(spark, text, args, **values)
    with format_statement(spark, text, values) as formatted_text:
        return sql(spark, formatted_text, args)


def _refuse_changes_in_braces(spark: SparkSession, text: str, args: Any, values: Mapping[str, Any]) -> None:
    """Refuse to leave the kinds of rows out of DataFrames in braces, as `sql` does of views. Raises RejectedError."""
    views = {name: each for name, each in values.items() if isinstance(each, DataFrame)}
    if not any(kinds_in(each.schema) for each in views.values()):
        return
    for number, name in enumerate(views):
        text = text.replace(f"{{{name}}}", view_name(number))
    analysis = Analysis(spark, catalog_of(spark), Text(text), args, list(views.values()))
    try:
        _refuse_changes_as_rows(analysis, Span(0, len(analysis.text)))
    except SqlError as error:  # its place is one in the text with other names
        raise RejectedError(error.code, error.message) from None


def column(spark: SparkSession, function: str | Aggregate, *columns: str | Column, **literals: Any) -> Column:
    """Return a use of a function as a Column, for `df.groupBy(...).agg(...)`, `pivot` and windows of Spark.

    Args:
        spark: The session.
        function: The name of a registered or created function; or a use with its columns, such as
            `functions.weighted_avg("v", "w").where("w > 0").distinct()`.
        columns: Names of columns, or Columns, if `function` is a name.
        literals: Direct arguments, if `function` is a name.

    Raises:
        RejectedError: UNKNOWN_FUNCTION; SIGNATURE for a function whose types depend on its arguments, as a Column does
            not tell its type; SCHEMA_MISMATCH for a wrong number of columns.

    >>> from pyspark.sql import functions as F
    >>> from foldflight import connect, udaf
    >>> from foldflight.spark import column
    >>> @udaf
    ... class Product:
    ...     def create_accumulator(self) -> int:
    ...         return 1
    ...     def accumulate(self, product: int, x: int) -> int:
    ...         return product * x
    ...     def get_value(self, product: int) -> int:
    ...         return product
    >>> numbers = spark.createDataFrame([(2,), (3,)], "x BIGINT")
    >>> numbers.groupBy().agg(column(spark, connect(Product)("x")).alias("product"), F.max("x").alias("max")).show()
    +-------+---+
    |product|max|
    +-------+---+
    |      6|  3|
    +-------+---+
    """
    catalog = catalog_of(spark)
    if isinstance(function, Aggregate):
        use = function
        entry = Entry.of(use.function.name, FunctionHandle(use.function, use.transport), "")
    else:
        entry = catalog.entry(function)
        use = entry.handle(*columns, **literals)
    if use.frame is not None:
        raise RejectedError(
            "SIGNATURE",
            f"{entry.name} has the frame {use.frame}, and a Column takes its frame from Spark; leave the frame out, "
            "and write column(...).over(window)",
            function=entry.handle.name,
        )
    if entry.types is None:
        raise RejectedError(
            "SIGNATURE",
            f"the types of {entry.name} depend on its arguments, and a Column does not tell its type; use group_by, or "
            "declare the types: CREATE AGGREGATE name(type) RETURNS type AS "
            f"'{entry.handle.name}'",
            function=entry.handle.name,
        )
    fields: list[object] = list(use.columns)
    order = []
    for key in use.order:
        # Columns are compared by identity, because `==` builds an expression.
        known_positions = [
            at for at, each in enumerate(fields) if each is key.column or _is_same_text(each, key.column)
        ]
        order.append((known_positions[0] if known_positions else len(fields), key.descending, key.nulls_first))
        fields += [] if known_positions else [key.column]
    types = entry.types[: len(use.columns)]  # the last arguments may be left out
    udf, *_ = catalog.udf(spark, entry, types, distinct=use.is_distinct, order=order, literals=use.literals)
    row: Column = sf.lit(True)
    if fields:
        row = sf.struct(*(_as_column(each).alias(str(index)) for index, each in enumerate(fields)))
    if use.condition is not None:
        row = sf.when(_as_column(use.condition), row)  # collect_list leaves NULL out
    result = sf.call_function(udf, sf.collect_list(row))
    return result.alias(use.name or catalog.as_called(use))


def emit_of(text: str) -> str | None:
    """Return what EMIT at the end of a statement demands: `changelog`, `append`, or None without it."""
    whole = Text(_without_end(text))
    return _emit(whole, Span(0, len(whole)))[1]


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the statements of a text that end with a semicolon, and the rest.

    Raises:
        SqlError: For a string or comment that does not end.
    """
    statements, begin = [], 0
    for token in tokens(text):
        if token.upper == ";":
            if text[begin : token.start].strip():
                statements.append(text[begin : token.start].strip())
            begin = token.stop
    rest = text[begin:]
    return statements, rest if tokens(rest) else ""


def _is_same_text(one: object, other: object) -> bool:
    return isinstance(one, str) and isinstance(other, str) and one == other


def _as_column(expression: object) -> Column:
    if isinstance(expression, Column):
        return expression
    return sf.expr(str(expression))


def _without_end(text: str) -> str:
    """Return a statement without its semicolon. Positions stay the same."""
    remaining = tokens(text) if ";" in text else []
    while remaining and remaining[-1].upper == ";":
        text = text[: remaining.pop().start]
    return text


def _emit(text: Text, span: Span) -> tuple[Span, str | None]:
    """Return the range without EMIT at its end, and what it says."""
    if "EMIT" not in text.words:
        return span, None
    for words, emit in _EMITS:
        expected = words.split()
        if text.says(span.stop - len(expected), *expected):
            return Span(span.start, span.stop - len(expected)), emit
        early = next((index for index in span.indexes if text.says(index, *expected)), None)
        if early is not None:
            raise text.error(f"{words} stands at the end of the statement", Span(early, early + len(expected)))
    # A column may be named emit: `ORDER BY emit DESC`, `f(emit)`.
    before = text.upper(span.stop - 3)
    follows = before == ")" or (before.isidentifier() and before.lower() not in GRAMMAR)
    if text.says(span.stop - 2, "EMIT") and follows and text.upper(span.stop - 1).isidentifier():
        raise text.error("after EMIT, CHANGES or ON WINDOW CLOSE is expected", Span(span.stop - 1, span.stop))
    return span, None


def _has_windows(text: Text) -> bool:
    return any(
        text.upper(index) in ("TUMBLE", "HOP", "CUMULATE", "SESSION") and text.says(index + 1, "(")
        for index in range(len(text))
    )


def _query_start(text: Text, span: Span) -> int | None:
    """Return where the query of a statement begins: behind CREATE ... AS or INSERT INTO ..., for example."""
    if text.upper(span.start) in TABLE_CHANGES:
        return None
    for index in text.flat(span):
        word = text.upper(index)
        is_table = word == "TABLE" and (
            index == span.start
            or text.says(index - 1, "AS")
            or (text.says(span.start, "INSERT") and text.upper(index - 1) not in ("INTO", "OVERWRITE"))
        )
        if (
            is_table
            or word in ("SELECT", "FROM", "VALUES")
            or (word == "WITH" and text.upper(index + 1) not in _AFTER_WITH)
        ):
            return index
        is_first = index == span.start or text.says(index - 1, "AS") or text.says(span.start, "INSERT")
        if word == "(" and is_first and starts_query(text, index):
            return index
    return None


def _check_mapped(analysis: Analysis, span: Span) -> bool:
    """Check scalar functions' arguments and places in joins, and return whether calls were rewritten.

    A query that is not understood is left to Spark.
    """
    try:
        query = parse(analysis.text, span)
    except SqlError:
        return False
    is_rewritten = check_types(analysis, query)
    check_joins(analysis, query)
    return is_rewritten


def _refuse_changes_as_rows(analysis: Analysis, span: Span) -> None:
    """Refuse to leave the kinds of rows out where Spark counts, compares or looks for them."""
    text = analysis.text
    start = span.start if text.upper(span.start) in TABLE_CHANGES else _query_start(text, span)
    if start is None:
        return
    try:
        query = parse_statement(text, Span(start, span.stop))
    except SqlError:
        return  # which is Spark's to understand
    refuse_changes_as_rows(analysis, query, analysis.edits)


def _without_aggregates(analysis: Analysis, args: Any, *, is_rewritten: bool) -> DataFrame:
    """Have Spark run a statement without aggregates of foldflight, unchanged unless another call is rewritten."""
    text, catalog = analysis.text, analysis.catalog
    whole = Span(0, len(text))
    if is_rewritten:
        result = analysis.analyse_edited(analysis.edits, whole)
        names = [catalog.as_written(name) for name in result.columns]
        return result if names == result.columns else result.toDF(*names)
    try:
        with mute_query_log():
            return plain_sql(analysis.spark, text.text, args)
    except SPARK_ERRORS as error:
        raise SparkSqlError(sql_error_of(error, catalog, text, whole, text.text), error) from None


def _without_query(analysis: Analysis, args: Any, *, is_rewritten: bool) -> DataFrame:
    """Have Spark run a statement that is no query, such as DROP TABLE."""
    text = analysis.text
    call = next(iter(calls_in(text, Span(0, len(text)), analysis.catalog.names, nested=True)), None)
    if call is not None and text.upper(0) in TABLE_CHANGES:
        raise text.error(
            f"{call.name} cannot be used in {text.upper(0)}; write the query with it as a temporary view first: CREATE "
            "TEMPORARY VIEW v AS SELECT ...",
            call.head,
        )
    return _without_aggregates(analysis, args, is_rewritten=is_rewritten)


def _refuse_more(text: Text) -> None:
    """Refuse a second statement. The statements of a script of Spark stand between BEGIN and END."""
    end = next((index for index in range(len(text)) if text.says(index, ";")), None)
    if end is not None and not any(text.says(index, "BEGIN") for index in range(end)):
        raise text.error(
            "another statement begins behind this semicolon; give one at a time (split_statements of foldflight.sql "
            "returns each)",
            Span(end, end + 1),
        )


def _refuse_script(text: Text, catalog: Catalog) -> None:
    """Refuse functions of foldflight in a script of Spark, which runs its statements itself."""
    if text.says(0, "BEGIN"):
        call = next(calls_in(text, Span(0, len(text)), catalog.names, nested=True), None)
        if call is not None:
            raise text.error(
                f"{call.name} cannot be used in a script, BEGIN ... END, whose statements Spark runs itself; run the "
                "statement with it before, as CREATE TEMPORARY VIEW v AS SELECT ..., and read v in the script",
                call.head,
            )


def _check_plain(analysis: Analysis, begin: int) -> None:
    """Have Spark parse a statement that is explained, and does not use an aggregate of foldflight."""
    text = analysis.text
    if begin == len(text):
        raise text.error("a query is expected here: EXPLAIN FOLDFLIGHT SELECT ...", Span(begin, begin + 1))
    edits = analysis.edits.copy()
    rest = Span(begin, len(text))
    if _query_start(text, rest) == begin:
        analysis.analyse_edited(edits, rest)
    elif begin:
        edits.replace(Span(0, begin), "EXPLAIN")
        analysis.analyse_edited(edits, Span(0, len(text)))


def _explain(spark: SparkSession, planner: Planner) -> DataFrame:
    rows = [(each.line, each.block, each.plan, each.why) for each in planner.decisions]
    return spark.createDataFrame(rows, _EXPLAINED)


def _finish(analysis: Analysis, head: Span, result: DataFrame) -> DataFrame:
    """Do with the result of a query what stands before it: CREATE TABLE ... AS, INSERT INTO ..."""
    text = analysis.text
    if head.is_empty:
        return result
    if text.says(head.start, "CREATE"):
        view = next((index for index in text.flat(head) if text.says(index, "VIEW")), None)
        if view is not None:
            return _create_view(analysis, head, view, result)
    if text.says(head.start, "CACHE"):
        raise text.error(
            "a cached query with functions of foldflight is a view first; write CREATE TEMPORARY VIEW v AS SELECT ..., "
            "and then CACHE TABLE v",
            head,
        )
    before = analysis.edits.render(head)
    try:
        return analysis.df(f"{before} SELECT * FROM {analysis.add_view(result)}")
    except SPARK_ERRORS as error:
        raise sql_error_of(error, analysis.catalog, text, head, before, analysis.edits) from None


def _create_view(analysis: Analysis, head: Span, view: int, result: DataFrame) -> DataFrame:
    text = analysis.text
    words = [text.upper(index) for index in range(head.start, view)]
    if "TEMPORARY" not in words and "TEMP" not in words:
        raise text.error(
            "a view with functions of foldflight lives in its session; write CREATE TEMPORARY VIEW",
            Span(head.start, view + 1),
        )
    if "GLOBAL" in words:
        raise text.error(
            "a view with functions of foldflight cannot be global; leave GLOBAL out", Span(head.start, view)
        )
    index = view + 4 if text.says(view + 1, "IF", "NOT", "EXISTS") else view + 1
    name = text.tokens[index].name
    if text.says(index + 1, "("):
        columns = text.split(Span(index + 2, text.partner[index + 1]))
        if len(columns) != len(result.columns):
            raise text.error(
                f"the view names {len(columns)} columns, and the query has {len(result.columns)}",
                Span(index + 1, text.partner[index + 1] + 1),
            )
        result = result.toDF(*(text.tokens[each.start].name for each in columns))
    if "REPLACE" in words:
        result.createOrReplaceTempView(quote_name(name))
    elif index == view + 4 and analysis.spark.catalog.tableExists(name):
        pass
    else:
        result.createTempView(quote_name(name))
    return empty_result(analysis.spark)


def _load(spark: SparkSession, catalog: Catalog, file: Path) -> None:
    """Execute the statements of a catalogue file that the session has not executed, and keep the catalogue in it."""
    known_statements = catalog.statements().values()
    for each in _read(file):
        if each in known_statements:
            continue
        if run_statement(spark, catalog, Text(each)) is None:
            raise RejectedError(
                "SETTINGS",
                f"the catalogue {file} has a statement that is no CREATE AGGREGATE or CREATE FUNCTION: {each}",
            )
    catalog.file = file


def _read(file: Path) -> list[str]:
    """Return the statements of a catalogue file, without comments around them. Raises RejectedError."""
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    except OSError as error:
        raise RejectedError("SETTINGS", f"cannot read the catalogue {file}: {error.strerror}") from None
    statements, rest = split_statements(text)
    texts = map(Text, [*statements, *([rest] if rest else [])])
    return [text.slice(Span(0, len(text))) for text in texts]


def _save(catalog: Catalog, before: Mapping[str, str]) -> None:
    """Write the change of a statement to the catalogue's file, in one step.

    The other statements of the file are kept, also of other sessions, which may write at the same time.

    Args:
        catalog: The catalogue.
        before: Its statements before the change.
    """
    now, file = catalog.statements(), catalog.file
    changed_names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if file is None or not changed_names:
        return
    file = file.resolve()
    new_file = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    try:
        with _lock(file.parent):
            statements = {name_of(Text(each)): each for each in _read(file)}
            for name in changed_names:
                # An alias stands behind the function that it names. Others keep their places, before their aliases.
                if name not in now or catalog.is_alias(name):
                    statements.pop(name, None)
                if name in now:
                    statements[name] = now[name]
            new_file.write_text("".join(f"{each};\n\n" for each in statements.values()), encoding="utf-8")
            if file.exists():
                shutil.copymode(file, new_file)
            new_file.replace(file)
    except OSError as error:
        raise RejectedError("SETTINGS", f"cannot write the catalogue {file}: {error.strerror}") from None
    finally:
        new_file.unlink(missing_ok=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Keep other processes from writing a catalogue in a folder. The end of the process also ends the lock."""
    folder_handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(folder_handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder_handle)
