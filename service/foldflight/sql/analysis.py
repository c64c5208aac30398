"""What Spark says of parts of a statement: schemas, equality, and errors at the position that the user wrote.

Of the items of a SELECT it has the names, and what else can be told without asking Spark. Most statements are plain:
names of columns, aliases, calls over columns, and operators between them. Whatever is not, such as a call of another
function, which may be an aggregate or make several rows, is a question to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from foldflight.spark.versions.facts import newer_grammar
from foldflight.spark.versions.sessions import (
    condition_of,
    contexts_of,
    format_statements,
    is_remote,
    message_of,
    mute_query_log,
)
from foldflight.sql.blocks import Block, ParsedQuery, queries_in
from foldflight.sql.calls import AGGREGATES, GRAMMAR, ParsedCall, call_at, calls_in
from foldflight.sql.catalog import Catalog, catalog_of, plain_sql
from foldflight.sql.text import Edits, Span, SqlError, Text, names_in

KEYWORDS: Final = frozenset(
    """ALL AND AS BETWEEN BY CASE CAST DISTINCT DIV ELSE END ESCAPE FALSE FROM ILIKE IN INTERVAL IS LIKE NOT NULL OR
    REGEXP RLIKE THEN TRUE WHEN""".split()  # noqa: SIM905 - as in a dictionary
)
SPARK_ERRORS: Final = (AnalysisException, ParseException)
"""The errors of Spark's parser and analyser."""

UNKNOWN_FUNCTION: Final = ("UNRESOLVED_ROUTINE", "UNRESOLVABLE_TABLE_VALUED_FUNCTION")
"""Spark's conditions for a function that it does not know."""

_DIFFERS: Final = "UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY.NON_DETERMINISTIC_LATERAL_SUBQUERIES"
_VIEW: Final = re.compile(r"foldflight_result_\d+_")
# A value that no column has, by its type.
_AROUND: Final = "named_struct('foldflight around', 1)"
_END: Final = re.compile(r"\n?== SQL|\s*SQLSTATE|;\s*line \d+ pos|\nJVM stacktrace|;\n'")
# Spark 3.5 says "function".
_UNRESOLVED: Final = re.compile(r"resolve (?:routine |function )?`([^`]+)`")
_POSITION: Final = re.compile(r"\(line (\d+), pos (\d+)\)|line (\d+) pos (\d+)")


class UnsupportedError(Exception):
    """A block that `group_by` and `over` cannot fold. It is a decision of the planner, not an error of the user.

    Args:
        reason: Why they cannot.
        remedy: What to write where the block is to retract rows, which lists cannot.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


PLANNING_ERRORS: Final = (*SPARK_ERRORS, UnsupportedError)
"""The errors of a part of a statement that cannot be planned alone. The plan of the whole statement tells why."""


def correlation_error() -> UnsupportedError:
    """Return why a query that refers to a query around it cannot be folded."""
    return UnsupportedError(
        "it is correlated: it refers to a column of a query around it",
        "join the aggregated one: ... FROM t JOIN (SELECT k, f(v) FROM changes GROUP BY k) USING (k)",
    )


class SparkSqlError(SqlError, AnalysisException):
    """Spark's refusal of a statement without aggregates of foldflight. It is also what `spark.sql` raises for it.

    Args:
        error: The refusal with its position.
        cause: Spark's error.
    """

    def __init__(self, error: SqlError, cause: PySparkException) -> None:
        SqlError.__init__(self, error.message, error.text, error.start, error.stop, condition=error.condition)
        self._cause = cause

    def getCondition(self) -> str | None:  # noqa: N802 - as PySpark names it
        return self.condition

    getErrorClass = getCondition  # noqa: N815

    def getSqlState(self) -> str | None:  # noqa: N802
        return self._cause.getSqlState()

    def getMessageParameters(self) -> dict[str, str] | None:  # noqa: N802
        return self._cause.getMessageParameters()

    def getQueryContext(self) -> Any:  # noqa: N802
        return contexts_of(self._cause)

    def getMessage(self) -> str:  # noqa: N802
        return self.message

    __str__ = SqlError.__str__

    def __reduce__(self) -> Any:
        # Spark's error belongs to the JVM of its session.
        return SqlError(self.message, self.text, self.start, self.stop, condition=self.condition).__reduce__()


def view_name(number: int) -> str:
    """Return the name of a DataFrame in statements."""
    return f"foldflight_result_{number}_"


def spark_message(error: PySparkException) -> str:
    """Return Spark's message without the statement, the plan and the stack trace behind it."""
    return _END.split(message_of(error).strip())[0].strip()


class KindsBelow(NamedTuple):
    """A question about the rows of a block. Spark is asked it together with the questions of the block that reads it.

    Args:
        items_end: The index behind the items of the block.
        check: Refuses the block, given the kinds of its rows; without them, it asks Spark for them.
    """

    items_end: int
    check: Callable[..., object]


class Analysis:
    """A statement, its parameters, and the session that analyses it.

    Args:
        spark: The session.
        catalog: The functions.
        text: The statement.
        args: The values of its parameters: by name, or in order of the question marks.
        views: DataFrames that the statement calls by `view_name`.

    Attributes:
        type_errors: The errors of calls whose arguments Spark refuses where they stand.
        zoned: The indexes of calls of scalar functions whose arguments have a time zone.
        kinds_below: What is still to be asked about the kinds of rows, by the block that reads these.
    """

    def __init__(
        self, spark: SparkSession, catalog: Catalog, text: Text, args: Any = None, views: Sequence[DataFrame] = ()
    ) -> None:
        self.spark = spark
        self.catalog = catalog
        self.text = text
        self.edits = Edits(text)
        self.type_errors: list[SqlError] = []
        self.zoned: set[int] = set()
        self.kinds_below: dict[Span, KindsBelow] = {}
        self._args = self._named_parameters(args)
        self._views = {view_name(number): df for number, df in enumerate(views)}
        self._types: dict[tuple[str, str], st.StructField] = {}
        self._repeatable: dict[str, bool] = {}
        self._resolved: dict[str, bool] = {}
        self._format_text: Callable[[str, Mapping[str, Any]], str] | None = None

    def _named_parameters(self, args: Any) -> Mapping[str, Any] | None:
        """Return the parameters by name. Question marks become names, because parts of the text are analysed."""
        if not args or isinstance(args, Mapping):
            return args or None
        marks = [index for index in range(len(self.text)) if self.text.says(index, "?")]
        if len(marks) != len(args):
            raise self.text.error(
                f"the statement has {len(marks)} parameters (?), and {len(args)} values are given",
                Span(marks[0], marks[0] + 1) if marks else Span(0, 1),
            )
        for number, index in enumerate(marks):
            self.edits.replace(Span(index, index + 1), f":parameter_{number}__")
        return {f"parameter_{number}__": value for number, value in enumerate(args)}

    def add_view(self, df: DataFrame) -> str:
        """Return a name under which statements of `df` can refer to a DataFrame."""
        name = view_name(len(self._views))
        self._views[name] = df
        return name

    @contextmanager
    def keeping_views(self) -> Iterator[None]:
        """Make each view that `df` needs once for all queries in the block. Connect sends them with each query."""
        if is_remote(self.spark):
            yield
            return
        with format_statements(self.spark) as format_text:
            self._format_text = format_text
            try:
                yield
            finally:
                self._format_text = None

    def df(self, sql: str) -> DataFrame:
        """Have Spark analyse a query. Raises Spark's errors."""
        used_views = {name: self._views[name] for name in _VIEW.findall(sql)}
        if used_views:
            sql = _VIEW.sub(lambda name: f"{{{name[0]}}}", sql.replace("{", "{{").replace("}", "}}"))
        with mute_query_log():
            if used_views and self._format_text is not None:
                sql, used_views = self._format_text(sql, used_views), {}
            return self.analysed(plain_sql(self.spark, sql, self._args, **used_views))

    @staticmethod
    def analysed(df: DataFrame) -> DataFrame:
        """Return a query after Spark has analysed it. Raises Spark's errors."""
        if is_remote(df):
            df.schema  # noqa: B018 - Connect analyses a query when its schema is needed
        return df

    def resolves(self, sql: str) -> bool:
        """Return whether Spark accepts a query."""
        if sql not in self._resolved:
            try:
                self.df(sql)
            except SPARK_ERRORS:
                self._resolved[sql] = False
            else:
                self._resolved[sql] = True
        return self._resolved[sql]

    def outer_references(
        self, rows: Callable[[str], str], references: Sequence[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """Return which references Spark resolves to no column of the rows. Raises Spark's refusals of the rows.

        A row around them has columns of all these names, which Spark takes where the rows have none. Without it, its
        answer would be an error, for which it and PySpark take three times as long.

        Args:
            rows: Returns the query with these items of SELECT.
            references: The qualifier, which may be empty, and the name of each.
        """
        tables: dict[str, list[str]] = {}
        for qualifier, name in references:
            tables.setdefault(qualifier, []).append(f"{_AROUND} AS {name}")
        around = [
            f"(SELECT {', '.join(items)}) AS {qualifier or '`foldflight around`'}"
            for qualifier, items in tables.items()
        ]
        select = ", ".join(f"{'.'.join(filter(None, each))} AS `{number}`" for number, each in enumerate(references))
        fields = self.df(f"SELECT `rows`.* FROM {', '.join(around)}, LATERAL ({rows(select)}) AS `rows`").schema
        types = [field.dataType for field in fields]
        return [
            each
            for each, type_ in zip(references, types, strict=True)
            if isinstance(type_, st.StructType) and type_.names == ["foldflight around"]
        ]

    def is_repeatable(self, sql: str) -> bool:
        """Return whether a query has the same rows each time: Spark refuses to join another one laterally."""
        if sql not in self._repeatable:
            try:
                self.df(f"SELECT 1 FROM VALUES (1), (2) AS t(x), LATERAL ({sql}) AS `rows`")
            except SPARK_ERRORS as error:
                self._repeatable[sql] = condition_of(error) != _DIFFERS
            else:
                self._repeatable[sql] = True
        return self._repeatable[sql]

    def types(self, rows: Callable[[str], str], expressions: Sequence[str]) -> list[st.StructField]:
        """Return the types of expressions over the same rows. Spark is asked once for all that it has not told yet.

        Args:
            rows: Returns the query with these items of SELECT.
            expressions: The expressions.
        """
        over = rows("")
        unknown_expressions = [each for each in dict.fromkeys(expressions) if (over, each) not in self._types]
        if unknown_expressions:
            select = ", ".join(f"{each} AS `{number}`" for number, each in enumerate(unknown_expressions))
            fields = self.df(rows(select)).schema
            self._types.update(((over, each), field) for each, field in zip(unknown_expressions, fields, strict=True))
        return [self._types[over, each] for each in expressions]

    def below(self, query: ParsedQuery, block: Block, select: str, edits: Edits, *, is_filtered: bool = True) -> str:
        """Return `rows_of` with the common table expressions that the block of this query sees."""
        sql = self.rows_of(block, select, edits, filtered=is_filtered)
        return self.seeing(query, block.span.start, sql, edits)

    @staticmethod
    def rows_of(block: Block, select: str, edits: Edits, *, filtered: bool = True) -> str:
        """Return a SELECT over the rows of a block.

        Args:
            block: The block.
            select: The items.
            edits: The edits of the text.
            filtered: Whether WHERE is applied.
        """
        return f"SELECT {block.hints} {select}{Analysis.source_of(block, edits, filtered=filtered)}"

    @staticmethod
    def source_of(block: Block, edits: Edits, *, filtered: bool = True) -> str:
        """Return FROM and, if filtered, WHERE of a block."""
        names = ("FROM", "WHERE") if filtered else ("FROM",)
        return "".join(f"\n{name} {edits.render(block.clauses[name])}" for name in names if name in block.clauses)

    def seeing(self, query: ParsedQuery, index: int, sql: str, edits: Edits) -> str:
        """Return a query with the common table expressions that are visible at an index.

        Raises:
            UnsupportedError: If the query reads the common table expression in which the index is, which is recursive.
        """
        each: ParsedQuery | None = query
        while each is not None:
            for table in each.tables if each.is_recursive else ():
                name = self.text.tokens[table.span.start].name
                is_around = table.span.start <= index < table.span.stop
                if is_around and {name.casefold(), "identifier"} & names_in(sql):
                    raise UnsupportedError(f"it reads {name}, the recursive common table expression that it is part of")
            visible_tables = self._tables_named(each, index, sql, edits)
            if visible_tables:
                word = "WITH RECURSIVE" if each.is_recursive else "WITH"
                sql = (
                    f"{word} {', '.join(visible_tables)} {f'SELECT * FROM ({sql})' if sql.startswith('WITH') else sql}"
                )
            each = each.parent
        return sql

    def _tables_named(self, query: ParsedQuery, index: int, sql: str, edits: Edits) -> list[str]:
        """Return the common table expressions before an index that a query or one of them names.

        Spark analyses all that it is given, so a chain of them would be analysed whole for each of its links.
        """
        texts: list[str] = []
        before = [each for each in query.tables if each.span.stop <= index]
        words = names_in(sql) if before else frozenset()
        for table in reversed(before):
            # IDENTIFIER(...) computes a name.
            if {self.text.tokens[table.span.start].name.casefold(), "identifier"} & words:
                texts.insert(0, edits.render(table.span))
                words |= names_in(texts[0])
        return texts

    def analyse_edited(self, edits: Edits, span: Span) -> DataFrame:
        """Have Spark analyse an edited range. Raises SqlError at the position that the user wrote."""
        sql = edits.render(span)
        try:
            return self.df(sql)
        except SPARK_ERRORS as error:
            raise sql_error_of(error, self.catalog, self.text, span, sql, edits) from None


@contextmanager
def placed_errors(spark: SparkSession, text: str) -> Iterator[None]:
    """Raise Spark's refusals of a statement in the block as SqlError, and keep PySpark from logging them."""
    with mute_query_log():
        try:
            yield
        except SqlError:
            raise
        except SPARK_ERRORS as error:
            whole = Text(text)
            raise sql_error_of(error, catalog_of(spark), whole, Span(0, len(whole)), text) from None


def sql_error_of(
    error: PySparkException, catalog: Catalog, text: Text, span: Span, sql: str, edits: Edits | None = None
) -> SqlError:
    """Return Spark's error with its position in the text as the user wrote it.

    Args:
        error: The error.
        catalog: The functions, to write them as users do.
        text: The statement.
        span: The range of the statement that Spark was given.
        sql: What Spark was given: that range with the edits, or the whole text without them.
        edits: The edits. None: Spark was given the whole text.
    """
    message = catalog.as_written(spark_message(error))
    condition = condition_of(error)
    if condition == "PARSE_SYNTAX_ERROR" or "filter predicate" in message:
        message += newer_grammar(text.text)
    if condition in UNKNOWN_FUNCTION and (name := _UNRESOLVED.search(message)) is not None:
        own = name[1].rpartition(".")[2].strip("`")
        close = catalog.closest(own)
        if own.lower() in GRAMMAR and own.lower() in {**catalog.entries, **catalog.mapped}:
            message += f" {own} is a word of SQL's grammar; call the function of this name in backquotes: `{own}`(...)."
        elif own.lower() in catalog.entries:
            message += (
                f" {own} is an aggregate of foldflight, which cannot be used here; write the query with it as a "
                "temporary view first: CREATE TEMPORARY VIEW v AS SELECT ..."
            )
        elif close:
            message += f" Did you mean {close}?"
        else:
            message += (
                f" If {own} is a function of yours, make it known: register(spark, functions), or CREATE AGGREGATE."
            )
    offsets = _offsets(error, sql)
    if offsets is None:
        return text.error(message, Span(span.start, span.start + 1), condition=condition)
    start, stop = offsets[0], max(offsets[1] - 1, offsets[0])
    if edits is not None:
        start, stop = edits.origin(span, start), edits.origin(span, stop)
    if start == stop:  # Spark's parser tells where a token begins
        stop = next((token.stop - 1 for token in text.tokens if token.start == start), stop)
    return SqlError(message, text.text, start, stop + 1, condition=condition)


def _offsets(error: PySparkException, sql: str) -> Sequence[int] | None:
    """Return the start and the stop of what an error is about, in the text that Spark was given."""
    for context in contexts_of(error):
        start, stop = context.startIndex(), context.stopIndex()
        if 0 <= start <= stop:
            return start, stop + 1
    position = _POSITION.search(str(error))
    if position is None:
        return None
    line, column = (int(each) for each in position.groups() if each is not None)
    start = sum(len(each) + 1 for each in sql.split("\n")[: line - 1]) + column
    return start, start + 1


"""Words that an expression may have between names, calls and constants."""

# Functions that are called without parentheses.
_FUNCTION: Final = re.compile(r"CURRENT_\w+|(SESSION_)?USER|LOCALTIME(STAMP)?|GROUPING__ID")


class Item(NamedTuple):
    """One item without its alias, and the name of its column."""

    body: Span
    name: str


def written_items(analysis: Analysis, block: Block) -> list[Item] | None:
    """Return the items of a block if the text tells their names; None if Spark is to be asked."""
    items = [_source_text(analysis, each) for each in analysis.text.split(block.clause("SELECT"))]
    known_items = [each for each in items if each is not None]
    return known_items if len(known_items) == len(items) else None


def _source_text(analysis: Analysis, item: Span) -> Item | None:
    text = analysis.text
    if star_of(text, item) is not None:
        return Item(item, "")
    alias = text.tokens[item.stop - 1]
    if len(item.indexes) > 2 and alias.is_name and text.says(item.stop - 2, "AS"):
        return Item(Span(item.start, item.stop - 2), alias.name)
    if len(item.indexes) > 1 and alias.is_name and _is_behind_operand(text, item):
        return Item(Span(item.start, item.stop - 1), alias.name)
    call = call_at(text, item.start)
    if call is not None and call.name not in analysis.catalog.names | AGGREGATES:
        return None
    end = _end_of_column(text, item) if call is None else call.span.stop
    if item.start < end == item.stop - 1 and alias.is_name:
        return Item(Span(item.start, end), alias.name)
    own = analysis.catalog.names
    if any(each.span.stop == item.stop and _has_its_text(text, each) for each in calls_in(text, item, own)):
        return Item(item, _in_line(text, item))
    if end != item.stop or (call is not None and call.name not in own):
        return None
    name = alias.name if call is None else _name_of_call(text, call)
    return Item(item, name) if name else None


def _is_behind_operand(text: Text, item: Span) -> bool:
    """Return whether the last word of an item stands behind the end of an expression, so that it is an alias."""
    before = text.tokens[item.stop - 2]
    is_end = before.kind in ("number", "string") or before.upper in (")", "]", "END")
    is_unit = any(text.says(index, "INTERVAL") for index in item.indexes)
    return is_end and not is_unit and text.upper(item.stop - 1) not in KEYWORDS


def _end_of_column(text: Text, item: Span) -> int:
    """Return the index behind the reference to a column with which an item begins; its start if it begins otherwise."""
    index = item.start
    while index < item.stop and text.tokens[index].is_name and not _is_other_word(text, index):
        index += 1
        if index + 1 >= item.stop or not text.says(index, "."):
            return index
        index += 1
    return item.start


def _is_other_word(text: Text, index: int) -> bool:
    """Return whether a word is a keyword, or a function without parentheses, rather than a column."""
    return text.upper(index) in KEYWORDS or _FUNCTION.fullmatch(text.upper(index)) is not None


def _name_of_call(text: Text, call: ParsedCall) -> str | None:
    """Return Spark's name of a call whose arguments are single words; None for another one."""
    arguments = [text.slice(each) for each in call.arguments]
    are_words = all(
        len(each.indexes) == 1 and (text.says(each.start, "*") or re.fullmatch(r"[A-Za-z_]\w*", argument_text))
        for each, argument_text in zip(call.arguments, arguments, strict=True)
    )
    if not are_words or call.order or any(_is_other_word(text, each.start) for each in call.arguments):
        return None
    return f"{call.name}({'DISTINCT ' * call.distinct}{', '.join(arguments) or '*'})"


def _has_its_text(text: Text, call: ParsedCall) -> bool:
    """Return whether an item with a call is named by its text.

    Spark leaves FILTER and OVER out of names, and shows lambdas in the arguments by its own names of their variables.
    """
    return call.condition is not None or call.is_over or any(text.says(index, "->") for index in call.span.indexes)


def _in_line(text: Text, span: Span) -> str:
    return re.sub(r"\s+", " ", text.slice(span))


def named_items(analysis: Analysis, items: Sequence[Span], names: Sequence[str]) -> list[Item]:
    """Return items without their aliases, given the names that Spark gives them."""
    return [Item(strip_alias(analysis, item, name), name) for item, name in zip(items, names, strict=True)]


def strip_alias(analysis: Analysis, item: Span, name: str) -> Span:
    """Return an item of SELECT without its alias, given the name that Spark gives the item."""
    last = analysis.text.tokens[item.stop - 1]
    if not last.is_name or last.name.lower() != name.lower():
        return item
    if len(item.indexes) > 2 and analysis.text.says(item.stop - 2, "AS"):
        return Span(item.start, item.stop - 2)
    if len(item.indexes) > 1 and not analysis.text.says(item.stop - 2, "."):
        return Span(item.start, item.stop - 1)
    return item


def item_names(analysis: Analysis, block: Block, columns: Sequence[str]) -> list[str]:
    """Return the names of a block's items, given those that Spark gives them in the `collect_list` plan.

    Spark's names are kept, with calls as users write them. It leaves FILTER and OVER out of names, and renames the
    variables of lambdas, so an item with such a call is named by its text.
    """
    items = analysis.text.split(block.clause("SELECT"))
    if len(items) != len(columns):
        return [analysis.catalog.as_written(name) for name in columns]
    return named_by_text(analysis, block, items, columns)


def named_by_text(
    analysis: Analysis, around: Block | ParsedQuery, items: Sequence[Span], columns: Sequence[str]
) -> list[str]:
    """Return the names of items as `item_names` does; `around` has the subqueries, whose calls are none of them."""
    names = [analysis.catalog.as_written(name) for name in columns]
    for index, item in enumerate(items):
        calls = calls_in(analysis.text, item, analysis.catalog.names, skip=around.inner)
        if (
            any(_has_its_text(analysis.text, call) for call in calls)
            and strip_alias(analysis, item, names[index]) == item
        ):
            names[index] = _in_line(analysis.text, item)
    return names


def star_of(text: Text, item: Span) -> int | None:
    """Return where an item has a star that stands for columns, not for a product."""
    stars = (index for index in text.flat(item) if text.says(index, "*"))
    return next((index for index in stars if index == item.start or text.says(index - 1, ".")), None)


def has_calls(text: Text, span: Span, without: Collection[int] = ()) -> bool:
    """Return whether a function is called in a range, or a query stands in it, besides at these indexes."""
    for index in span.indexes:
        if index in without:
            continue
        is_word = text.upper(index).lower() in GRAMMAR or text.upper(index - 1) in ("AS", "::")  # a type behind these
        if text.says(index, "->") or _FUNCTION.fullmatch(text.upper(index)):
            return True
        if text.tokens[index].is_name and text.says(index + 1, "(") and not is_word:
            return True
    return any(not set(query.span.indexes) <= set(without) for query in queries_in(text, span))
