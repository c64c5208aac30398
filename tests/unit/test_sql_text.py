"""The text of statements: tokens, blocks, calls and edits. Nothing here needs Spark."""

from __future__ import annotations

import pytest

from foldflight.sql.blocks import parse
from foldflight.sql.calls import call_at, calls_in
from foldflight.sql.text import Edits, Span, SqlError, Text, tokens


def whole(text: Text) -> Span:
    return Span(0, len(text))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("a.`b``c` 'it''s' \"x\\\"y\"", "word op quoted string string"),
        ("-- no ' end \nx /* a /* nested */ ( */ y", "word word"),
        ("$$ it's ; $$ $f$ $$ $f$", "dollar dollar"),
        ("1.5e3 10L r'\\' x -> y |> z", "number number string word op word op word"),
        ("/*+ hint */ größe", "hint word"),
    ],
)
def test_tokens_end_where_those_of_spark_do(text: str, kinds: str) -> None:
    """Strings, names, comments and numbers end where Spark's do."""
    assert [token.kind for token in tokens(text)] == kinds.split()


@pytest.mark.parametrize(
    ("text", "value"),
    [("'it''s'", "it's"), (r"'a\'b'", "a'b"), ("r'\\n'", "\\n"), ("$$ x $$", " x "), ("$f$ $$ $f$", " $$ ")],
)
def test_a_string_stands_for_its_characters(text: str, value: str) -> None:
    """A string stands for its characters."""
    assert tokens(text)[0].value == value


@pytest.mark.parametrize(
    ("text", "at"), [("SELECT 'x", 7), ("a `b", 2), ("/* x", 0), ("f(x", 1), ("f(x])", 3), ("x)", 1)]
)
def test_texts_that_are_not_closed_are_refused(text: str, at: int) -> None:
    """The error is at what has no end, or no beginning."""
    with pytest.raises(SqlError) as excinfo:
        Text(text)
    assert excinfo.value.start == at


def test_the_caret_is_below_the_place() -> None:
    """It is right in later lines and behind tabs, too."""
    error = SqlError("no", "SELECT\n\tfoo(x)", 8, 14)
    assert str(error) == "no (line 2, column 2)\n  \tfoo(x)\n  \t^^^^^^"


def test_blocks_and_clauses_are_found() -> None:
    """Clauses begin at keywords in no parentheses; unions, tails, common tables and subqueries are found."""
    text = Text(
        "WITH t AS (SELECT 1 AS `from`) SELECT /*+ X */ DISTINCT a, (SELECT max(b) FROM u) FROM t WHERE x IS "
        "DISTINCT FROM y GROUP BY a HAVING a > 1 UNION ALL (SELECT b FROM v) ORDER BY a LIMIT 1"
    )
    query = parse(text, whole(text))
    (block,) = query.blocks
    assert {name: text.slice(span) for name, span in block.clauses.items()} == {
        "SELECT": "a, (SELECT max(b) FROM u)",
        "FROM": "t",
        "WHERE": "x IS DISTINCT FROM y",
        "GROUP BY": "a",
        "HAVING": "a > 1",
    }
    assert (block.quantifier, block.hints) == ("DISTINCT", "/*+ X */")
    assert {name: text.slice(span) for name, span in query.tails.items()} == {"ORDER BY": "a", "LIMIT": "1"}
    assert [text.slice(table.span) for table in query.tables] == ["t AS (SELECT 1 AS `from`)"]
    assert [text.slice(inner.span) for inner in block.inner] == ["SELECT max(b) FROM u"]
    assert query.is_union
    assert len(list(query.walk())) == 4


def test_the_parts_of_a_call_are_found() -> None:
    """DISTINCT, ORDER BY, WITHIN GROUP, FILTER and OVER."""
    text = Text("f(DISTINCT a + 1, g(b, c) ORDER BY d DESC, e NULLS LAST) FILTER (WHERE x > 1) OVER (ORDER BY y)")
    call = call_at(text, 0)
    assert call is not None
    assert [text.slice(each) for each in call.arguments] == ["a + 1", "g(b, c)"]
    assert [(text.slice(each.span), each.descending, each.nulls_first) for each in call.order] == [
        ("d", True, False),
        ("e", False, False),
    ]
    assert call.condition is not None
    assert (call.distinct, call.is_over, text.slice(call.condition), text.slice(call.span)) == (
        True,
        True,
        "x > 1",
        text.text,
    )
    text = Text("f(p => 1) WITHIN GROUP (ORDER BY a DESC NULLS FIRST) + 1")
    call = call_at(text, 0)
    assert call is not None
    assert (call.is_within, call.order[0].nulls_first) == (True, True)
    assert text.slice(call.span).endswith("FIRST)")
    names = Text("f(f(a)) + t.f(b) + f + `F`(c)")
    assert [names.slice(each.span) for each in calls_in(names, whole(names), {"f"}, nested=True)] == [
        "f(f(a))",
        "f(a)",
        "`F`(c)",
    ]


def test_edits_know_where_text_comes_from() -> None:
    """Inner replacements are dropped by outer ones; each character of the result has an origin."""
    text = Text("SELECT f(a, b) FROM t")
    edits = Edits(text)
    edits.replace(Span(3, 4), "alpha")
    edits.replace(Span(1, 2), "long_name")
    assert edits.render(whole(text)) == "SELECT long_name(alpha, b) FROM t"
    result = edits.render(whole(text))
    assert edits.origin(whole(text), result.index("alpha") + 3) == text.text.index("a,")
    assert edits.origin(whole(text), result.index("b)")) == text.text.index("b)")
    copy = edits.copy()
    copy.replace(Span(1, 7), "x")
    assert copy.render(whole(text)) == "SELECT x FROM t"
    assert edits.render(whole(text)) == result
    assert copy.changes(4)
    assert not edits.changes(5)


def test_edits_arrange_ranges() -> None:
    """Ranges come in another order with their replacements, and each character of the result has an origin."""
    text = Text("SELECT f(a, g(b)) FROM t")
    edits = Edits(text)
    edits.replace(Span(7, 8), "beta")
    edits.arrange(Span(1, 10), ["long(", Span(5, 9), " + ", Span(3, 4), ")"])
    result = edits.render(whole(text))
    assert result == "SELECT long(g(beta) + a) FROM t"
    edits.replace(Span(5, 6), "inner")
    result = edits.render(whole(text))
    assert result == "SELECT long(inner(beta) + a) FROM t"
    assert edits.render(Span(5, 9)) == "inner(beta)"
    assert edits.origin(whole(text), result.rindex("a)")) == text.text.index("a,")
    assert edits.origin(whole(text), result.index("long") + 2) == text.text.index("f(")
    assert [edits.changes(index) for index in (0, 1, 3, 5, 6, 7, 9)] == [False, True, False, True, False, True, True]
    edits.replace(Span(1, 10), "x")
    assert edits.render(whole(text)) == "SELECT x FROM t"
