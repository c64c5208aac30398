"""The blocks of a query: its SELECTs and their clauses, as ranges of tokens.

Expressions are not parsed. A clause begins with a keyword outside of parentheses, and clauses have the order of Spark's
grammar. So its position decides whether a word is a keyword or a name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from foldflight.sql.text import Span, Text

SETS: Final = ("UNION", "INTERSECT", "EXCEPT", "MINUS")
TABLE_CHANGES: Final = ("DELETE", "UPDATE", "MERGE")
"""The words with which statements begin that change rows of tables."""
_STARTS: Final = ("SELECT", "WITH", "VALUES", "TABLE", "FROM", "MAP", "REDUCE")
# In the order of the grammar. Tails belong to the whole query, not to one operand of a union.
_CLAUSES: Final = ("SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "QUALIFY")
_TAILS: Final = ("WINDOW", "ORDER BY", "CLUSTER BY", "DISTRIBUTE BY", "SORT BY", "LIMIT", "OFFSET")
_WITH_BY: Final = ("GROUP", "ORDER", "CLUSTER", "DISTRIBUTE", "SORT")
_EMPTY: Final = Span(0, 0)
# LIMIT and OFFSET are names of columns behind a word of `_BEFORE_NAMES`, and before a word of `_AFTER_NAMES`.
_BEFORE_NAMES: Final = frozenset(
    "SELECT DISTINCT BY WHERE HAVING QUALIFY ON AND OR NOT CASE WHEN THEN ELSE BETWEEN IN LIKE".split()  # noqa: SIM905
)
_AFTER_NAMES: Final = frozenset(
    """FROM WHERE GROUP HAVING QUALIFY ORDER CLUSTER DISTRIBUTE SORT LIMIT OFFSET UNION INTERSECT EXCEPT MINUS JOIN ON
    AND OR IS NOT IN LIKE BETWEEN ASC DESC NULLS AS THEN ELSE END""".split()  # noqa: SIM905 - as in a dictionary
)


@dataclass
class CommonTable:
    """A common table expression: `name AS (query)`."""

    span: Span
    query: ParsedQuery


@dataclass
class Block:
    """One SELECT.

    Args:
        span: Its tokens.
        clauses: The tokens after the keyword of each clause, by keyword.
        quantifier: ALL, DISTINCT or nothing.
        hints: Its hints, as written.
        inner: The outermost queries in parentheses within it.
    """

    span: Span
    clauses: dict[str, Span] = field(default_factory=dict)
    quantifier: str = ""
    hints: str = ""
    inner: list[ParsedQuery] = field(default_factory=list)

    def clause(self, name: str) -> Span:
        """Return the tokens of a clause; an empty range if there is none."""
        return self.clauses.get(name, _EMPTY)


@dataclass
class ParsedQuery:
    """A whole query.

    Args:
        span: Its tokens.
        parent: The query around it.
        tables: Its common table expressions.
        is_recursive: Whether they may be recursive.
        blocks: Its SELECTs; several in a union.
        parts: Its operands that are queries with tails of their own: in parentheses, or with FROM before SELECT.
        tails: The tokens after the keywords behind the last operand: ORDER BY, LIMIT and similar ones.
        inner: Further queries in parentheses, outside of its blocks.
        operators: The tokens of each operator behind `|>`.
        opaque: The syntax because of which the query is not folded (`|>`, for example); empty for a plain SELECT.
        is_union: Whether it has several operands.
    """

    span: Span
    parent: ParsedQuery | None = None
    tables: list[CommonTable] = field(default_factory=list)
    is_recursive: bool = False
    blocks: list[Block] = field(default_factory=list)
    parts: list[ParsedQuery] = field(default_factory=list)
    tails: dict[str, Span] = field(default_factory=dict)
    inner: list[ParsedQuery] = field(default_factory=list)
    operators: list[Span] = field(default_factory=list)
    opaque: str = ""
    is_union: bool = False

    def is_sole(self, block: Block | None) -> bool:
        """Return whether the query consists of this block, so that the tails are part of it."""
        return not self.is_union and not self.parts and len(self.blocks) == 1 and self.blocks[0] is block

    def is_whole(self, block: Block) -> bool:
        """Return whether the statement consists of this block."""
        return self.parent is None and self.is_sole(block)

    @property
    def is_part(self) -> bool:
        """Whether the query is an operand of the one around it."""
        return self.parent is not None and any(each is self for each in self.parent.parts)

    @property
    def is_inner(self) -> bool:
        """Whether another query reads its rows, which are no part of the result."""
        return self.parent is not None and (self.parent.is_inner or not self.is_part or bool(self.parent.operators))

    def is_bare_part(self, text: Text) -> bool:
        """Return whether the query is an operand without parentheses."""
        return self.is_part and text.partner.get(self.span.start - 1) != self.span.stop

    def may_be_correlated(self, text: Text) -> bool:
        """Return whether it may refer to columns of a query around it: unless each of those reads it as a relation."""
        around = self.parent
        if around is None:
            return False
        opening = self.span.start - 1
        sources = [block.clause("FROM") for block in around.blocks]
        is_relation = any(
            opening in text.flat(source) and (opening == source.start or text.upper(opening - 1) in (",", "JOIN"))
            for source in sources
        )
        is_read = is_relation or self.is_part or any(table.query is self for table in around.tables)
        return not is_read or around.may_be_correlated(text)

    def walk(self) -> Iterator[ParsedQuery]:
        """Yield the query and all queries in it, inner ones first."""
        for query in self.inner_queries():
            yield from query.walk()
        yield self

    def inner_queries(self) -> list[ParsedQuery]:
        """Return the queries directly in it. In a block, those in FROM come first, whose columns others may use."""
        in_blocks = [
            query
            for block in self.blocks
            for query in sorted(block.inner, key=lambda inner: not block.clause("FROM").holds(inner.span))
        ]
        return [*(table.query for table in self.tables), *self.parts, *in_blocks, *self.inner]


def parse(text: Text, span: Span, parent: ParsedQuery | None = None) -> ParsedQuery:
    """Return the blocks of the query in a range of tokens.

    Raises:
        SqlError: If a query is missing where one is expected.
    """
    query = ParsedQuery(span, parent=parent)
    begin = _parse_tables(text, query) if text.says(span.start, "WITH") else span.start
    stop = span.stop
    _refuse_changes_of_tables(text, Span(begin, stop))
    if text.upper(begin) in ("MAP", "REDUCE"):
        query.opaque = text.upper(begin)
    for index in text.flat(Span(begin, stop)):
        if text.upper(index) == "|>":
            query.opaque, stop = "|>", index
            query.operators = text.split(Span(index + 1, span.stop), "|>")
            query.inner += queries_in(text, Span(index, span.stop), query)
            break
    operands = _operands(text, Span(begin, stop))
    query.is_union = len(operands) > 1
    for number, each in enumerate(operands):
        selects = _selects_behind_from(text, each)
        if selects and query.is_union:  # ORDER BY and LIMIT behind it are its own, not the union's
            query.parts.append(parse(text, each, query))
        elif len(selects) > 1:
            _add_bodies(text, query, [*selects, each.stop], Span(each.start + 1, selects[0]))
        else:
            has_tails = number == len(operands) - 1
            _add_operand(text, query, Span(each.start, _take_tails(text, query, each)) if has_tails else each)
    for tail in query.tails.values():
        query.inner += queries_in(text, tail, query)
    return query


def parse_statement(text: Text, span: Span) -> ParsedQuery:
    """Return the queries of a statement, which may also be DELETE, UPDATE or MERGE, or have INSERT behind WITH or FROM.

    The queries of such a statement are inside of one query without blocks.

    Raises:
        SqlError: If a query is missing where one is expected.
    """
    query = ParsedQuery(span)
    begin = _parse_tables(text, query) if text.says(span.start, "WITH") else span.start
    body = Span(begin, span.stop)
    insert = insert_in(text, body)
    if text.upper(begin) not in TABLE_CHANGES and insert is None:
        return parse(text, span)
    selects = _selects_behind_from(text, body)
    if insert is None:
        query.inner += queries_in(text, body, query)
    elif selects:
        _add_bodies(text, query, [*selects, span.stop], Span(begin + 1, insert))
    else:
        starts = (at for at in text.flat(Span(insert, span.stop)) if text.upper(at) in _STARTS and at > insert + 2)
        start = next(starts, None)
        query.parts += [] if start is None else [parse(text, Span(start, span.stop), query)]
    return query


def insert_in(text: Text, body: Span) -> int | None:
    """Return where INSERT stands in a statement, which may begin with WITH or FROM."""
    if "INSERT" not in text.words:
        return None
    matches = (at for at in text.flat(body) if text.says(at, "INSERT") and text.upper(at + 1) in ("INTO", "OVERWRITE"))
    return next(matches, None)


def _refuse_changes_of_tables(text: Text, body: Span) -> None:
    """Refuse INSERT, DELETE, UPDATE and MERGE behind WITH or FROM: Spark would execute them to analyse the query."""
    if text.upper(body.start) in TABLE_CHANGES:
        raise text.error(
            f"{text.upper(body.start)} cannot stand behind WITH in a statement with functions of foldflight; write the "
            "query with them as a temporary view first: CREATE TEMPORARY VIEW v AS SELECT ...",
            Span(body.start, body.start + 1),
        )
    index = insert_in(text, body)
    if index is not None:
        raise text.error(
            "INSERT stands before WITH and FROM in a statement with functions of foldflight; write INSERT INTO t WITH "
            "... SELECT ...",
            Span(index, index + 1),
        )


def _add_operand(text: Text, query: ParsedQuery, span: Span) -> None:
    if span.is_empty:
        raise text.error("a query is expected here: SELECT ...", Span(span.start, span.start + 1))
    if text.says(span.start, "(") and text.partner[span.start] == span.stop - 1:
        query.parts.append(parse(text, Span(span.start + 1, span.stop - 1), query))
    elif text.says(span.start, "SELECT"):
        query.blocks.append(_block(text, span, query))
    elif selects := _selects_behind_from(text, span):
        _add_block_behind_from(text, query, span, selects[0])
    else:
        query.inner += queries_in(text, span, query)
        if text.upper(span.start) not in ("VALUES", "TABLE"):
            query.opaque = query.opaque or text.tokens[span.start].text


def _parse_tables(text: Text, query: ParsedQuery) -> int:
    """Read the common table expressions, and return where the body of the query begins."""
    index = query.span.start + 1
    if text.says(index, "RECURSIVE") and not text.says(index + 1, "AS") and not text.says(index + 1, "("):
        query.is_recursive = True
        index += 1
    while True:
        first = index
        # name [(columns)] [MAX RECURSION LEVEL n] [AS] (query)
        while index < query.span.stop and not (text.says(index, "(") and starts_query(text, index)):
            index = text.partner[index] + 1 if text.says(index, "(") else index + 1
            if text.says(index, "SELECT"):
                break
        if not text.says(index, "("):
            raise text.error(
                "the query of this common table expression is expected: name AS (SELECT ...)", Span(first, first + 1)
            )
        end = text.partner[index]
        query.tables.append(CommonTable(Span(first, end + 1), parse(text, Span(index + 1, end), query)))
        index = end + 1
        if not text.says(index, ","):
            return index
        index += 1


def starts_query(text: Text, opening: int) -> bool:
    """Return whether a query stands in these parentheses, rather than an expression or a list."""
    index = opening
    while text.says(index, "("):
        index += 1
    if text.upper(index) not in _STARTS or text.upper(index + 1) in (")", ",", ".", "=>"):
        return False
    after = text.tokens[index + 1] if index + 1 < len(text) else None
    if text.upper(index) in ("SELECT", "VALUES"):
        return True
    return after is not None and (after.is_name or after.kind == "op")


def _operands(text: Text, span: Span) -> list[Span]:
    """Cut a range at UNION, INTERSECT, EXCEPT and MINUS."""
    parts, begin, skip = [], span.start, -1
    for index in text.flat(span):
        is_set = text.upper(index) in SETS and index > begin and index >= skip
        if not is_set or text.says(index - 1, ".") or text.says(index - 1, "AS"):
            continue
        after = index + 2 if text.upper(index + 1) in ("ALL", "DISTINCT") else index + 1
        if text.upper(after) in _STARTS or (text.says(after, "(") and starts_query(text, after)):
            parts.append(Span(begin, index))
            begin = skip = after
    return [*parts, Span(begin, span.stop)]


def _keyword(text: Text, index: int, names: Sequence[str]) -> tuple[str, int] | None:
    """Return which of the clauses begins at an index, and the number of tokens of its keyword."""
    word = text.upper(index)
    if word not in names and word not in _WITH_BY:
        return None
    if text.tokens[index].kind != "word" or text.says(index - 1, ".") or text.says(index - 1, "AS"):
        return None
    if word in _WITH_BY:
        name = f"{word} BY"
        return (name, 2) if name in names and text.says(index + 1, "BY") else None
    if word == "FROM" and text.says(index - 1, "DISTINCT"):  # IS DISTINCT FROM
        return None
    if index + 1 >= len(text) or text.upper(index + 1) in (",", ".", ")", "=", "|>"):
        return None  # a name
    if word in ("LIMIT", "OFFSET") and _is_column(text, index):
        return None
    if word == "WINDOW" and not (text.says(index + 2, "AS") or text.says(index + 2, "(")):
        return None
    return word, 1


def _is_column(text: Text, index: int) -> bool:
    """Return whether LIMIT or OFFSET at an index is the name of a column or of a relation, not a keyword."""
    before, after = text.upper(index - 1), text.upper(index + 1)
    is_operand = text.tokens[index - 1].kind == "op" and before not in (")", "]", "?")
    is_operated = text.tokens[index + 1].kind == "op" and after not in ("(", "?", ":", "-", "+")
    if before == "*" and text.upper(index - 2) in ("SELECT", "DISTINCT", "ALL", ",", "."):
        return False  # behind all columns: FROM t SELECT * LIMIT 1
    return is_operand or is_operated or before in _BEFORE_NAMES or after in _AFTER_NAMES


def _take_tails(text: Text, query: ParsedQuery, span: Span) -> int:
    """Find ORDER BY, LIMIT and similar clauses behind the last operand, and return where it ends."""
    first, current, begin = span.stop, "", 0
    for index in text.flat(span):
        keyword = _keyword(text, index, _TAILS)
        if keyword is None or index == span.start:
            continue
        if current:
            query.tails[current] = Span(begin, index)
        else:
            first = index
        current, begin = keyword[0], index + keyword[1]
    if current:
        query.tails[current] = Span(begin, span.stop)
    return first


def _block(text: Text, span: Span, query: ParsedQuery, source: Span | None = None) -> Block:
    """Return the block of a SELECT. Its FROM is behind its items, or is `source`, whose queries are not its own."""
    block = Block(span)
    index = span.start + 1
    clauses = [each for each in _CLAUSES if source is None or each != "FROM"]
    while index < span.stop and text.tokens[index].kind == "hint":
        block.hints += text.tokens[index].text
        index += 1
    if text.upper(index) in ("ALL", "DISTINCT") and text.upper(index + 1) not in (",", "FROM"):
        block.quantifier = text.upper(index)
        index += 1
    current, begin = "SELECT", index
    for at in text.flat(Span(index, span.stop)):
        keyword = _keyword(text, at, clauses[clauses.index(current) + 1 :])
        if keyword is None or at == begin:
            continue
        block.clauses[current] = Span(begin, at)
        current, begin = keyword[0], at + keyword[1]
    block.clauses[current] = Span(begin, span.stop)
    for clause in block.clauses.values():
        block.inner += queries_in(text, clause, query)
    if source is not None:
        block.clauses["FROM"] = source
    return block


def _selects_behind_from(text: Text, span: Span) -> list[int]:
    """Return the indexes of SELECT in `FROM t SELECT ...`; none for another operand."""
    if not text.says(span.start, "FROM"):
        return []
    return [at for at in text.flat(span) if text.says(at, "SELECT") and text.upper(at - 1) not in (".", "AS")]


def _add_block_behind_from(text: Text, query: ParsedQuery, span: Span, select: int) -> None:
    """Add the block of `FROM t SELECT ...`."""
    source = Span(span.start + 1, select)
    block = _block(text, Span(select, span.stop), query, source)
    block.span = span
    block.inner += queries_in(text, source, query)
    query.blocks.append(block)
    if any(text.says(at, "LATERAL", "VIEW") for at in text.flat(block.clause("SELECT"))):
        query.opaque = query.opaque or "LATERAL VIEW behind SELECT"


def _add_bodies(text: Text, query: ParsedQuery, bounds: Sequence[int], source: Span) -> None:
    """Add a query for each SELECT behind one FROM, with tails of its own. INSERT may stand before each."""
    query.inner += queries_in(text, source, query)
    for begin, end in itertools.pairwise(bounds):
        insert = insert_in(text, Span(begin, end))
        body = ParsedQuery(Span(begin, insert or end), parent=query, opaque="several SELECTs behind FROM")
        block = Span(begin, _take_tails(text, body, body.span))
        body.blocks.append(_block(text, block, body, source))
        for tail in body.tails.values():
            body.inner += queries_in(text, tail, body)
        query.parts.append(body)


def queries_in(text: Text, span: Span, query: ParsedQuery | None = None) -> list[ParsedQuery]:
    """Return the outermost queries in parentheses of a range."""
    queries, resume = [], span.start
    for index in text.openings:
        if resume <= index < span.stop and starts_query(text, index):
            queries.append(parse(text, Span(index + 1, text.partner[index]), query))
            resume = text.partner[index] + 1
    return queries
