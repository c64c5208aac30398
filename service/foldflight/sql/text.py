"""Text of Spark SQL as tokens with positions, and edits of that text.

The tokens are words, names in backticks, strings, numbers, hints and operators. Blanks and comments are skipped, and an
edit leaves them in the text. There is no grammar here: Spark parses and analyses the statement itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from foldflight.errors import RejectedError

if TYPE_CHECKING:
    from foldflight.sql.calls import ParsedCall

_Kind = Literal["word", "quoted", "string", "number", "hint", "dollar", "op"]


class SqlError(RejectedError):
    """A statement that is refused, with the position in the text as the user wrote it.

    Args:
        message: The problem, and what to write instead.
        text: The statement.
        start: Position of the first character concerned.
        stop: Position after the last one. Default: one character.
        code: As for `RejectedError`.
        condition: The name of Spark's error condition, if Spark refused the statement.
    """

    def __init__(
        self,
        message: str,
        text: str,
        start: int,
        stop: int | None = None,
        *,
        code: str = "SIGNATURE",
        condition: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.text = text
        self.start = start
        self.stop = max(stop if stop is not None else start + 1, start + 1)
        self.condition = condition

    def __str__(self) -> str:
        """Return the message, and the line of the statement with carets below the characters concerned."""
        line = self.text.count("\n", 0, self.start) + 1
        begin = self.text.rfind("\n", 0, self.start) + 1
        end = self.text.find("\n", self.start)
        row = self.text[begin : end if end >= 0 else len(self.text)]
        column = self.start - begin
        width = max(min(self.stop, begin + len(row)) - self.start, 1)
        blank = "".join("\t" if each == "\t" else " " for each in row[:column])
        return f"{self.message} (line {line}, column {column + 1})\n  {row}\n  {blank}{'^' * width}"


class Span(NamedTuple):
    """A range of tokens, by their indexes.

    Args:
        start: The index of the first token.
        stop: The index after the last token.
    """

    start: int
    stop: int

    @property
    def is_empty(self) -> bool:
        """Whether it has no tokens."""
        return self.start >= self.stop

    @property
    def indexes(self) -> range:
        """The indexes of its tokens."""
        return range(self.start, self.stop)

    def holds(self, other: Span) -> bool:
        """Return whether another range lies in this one."""
        return self.start <= other.start and other.stop <= self.stop


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Args:
        kind: A word, a name in backticks, a string, a number, a hint, a string in dollars, or an operator.
        text: The token as written.
        start: The position of its first character.
        stop: The position after its last character.
    """

    kind: _Kind
    text: str
    start: int
    stop: int

    @property
    def upper(self) -> str:
        """The keyword or operator that it may be; empty for other tokens."""
        return self.text.upper() if self.kind == "word" else self.text if self.kind == "op" else ""

    @property
    def is_name(self) -> bool:
        """Whether it may be an identifier."""
        return self.kind in ("word", "quoted")

    @property
    def name(self) -> str:
        """The identifier that it stands for."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text

    @property
    def value(self) -> str:
        """The content of a string token, without quotes and escapes. It has no meaning for other kinds of tokens."""
        if self.kind == "dollar":
            return self.text[self.text.index("$", 1) + 1 : self.text.rindex("$", 0, -1)]
        mark = self.text[0]
        if mark in "rR":
            return self.text[2:-1]
        return re.sub(r"\\(.)", r"\1", self.text[1:-1].replace(mark * 2, mark), flags=re.DOTALL)


_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|--(?:\\\r?\n|[^\r\n])*)
  | (?P<hint>/\*\+.*?\*/)
  | (?P<comment>/\*)
  | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
  | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<dollar>\$(?P<tag>[A-Za-z_]*)\$.*?\$(?P=tag)\$)
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:L|S|Y|F|D|BD)?(?![\w]))
  | (?P<word>[\w]+)
  | (?P<op>\|>|=>|->|::|<=>|<>|!=|<=|>=|\|\||.)
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(text: str) -> list[Token]:
    """Return the tokens of a text.

    Raises:
        SqlError: For a string, name or comment that does not end.
    """
    result: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None
        kind = "dollar" if match.lastgroup == "tag" else match.lastgroup
        if kind == "comment":
            at = _comment_end(text, at)
            continue
        if kind == "op" and match[0] in "'\"`":
            raise SqlError(f"this {match[0]} is not closed; add another {match[0]}", text, at)
        if kind == "op" and text.startswith("$$", at):
            raise SqlError("this $$ is not closed; add another $$", text, at, at + 2)
        if kind == "raw":
            kind = "string"
        if kind != "space":
            result.append(Token(kind, match[0], at, match.end()))  # type: ignore[arg-type]
        at = match.end()
    return result


def names_in(text: str) -> frozenset[str]:
    """Return all names and words of a text, without regard to case."""
    return frozenset(token.name.casefold() for token in tokens(text) if token.is_name)


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for mark in re.finditer(r"/\*|\*/", text[start:]):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return start + mark.end()
    raise SqlError("this comment is not closed; add */", text, start, start + 2)


class Text:
    """A statement: its text, its tokens, and the partner of each parenthesis.

    Args:
        text: The statement.

    Attributes:
        reads_case: Asks the session whether names that differ in case are different.
        words: All keywords and operators that stand in it.
        openings: The indexes of opening parentheses.
        heads: The indexes of names before a parenthesis, with which calls begin.
        calls: What has been parsed at some of these; a statement is searched for calls many times.

    Raises:
        SqlError: For a parenthesis without a partner.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.reads_case: Callable[[], bool] = lambda: False
        self._uppers = tuple(token.upper for token in self.tokens)
        self.words = frozenset(self._uppers)
        self.openings = [index for index, upper in enumerate(self._uppers) if upper == "("]
        self.calls: dict[int, ParsedCall | None] = {}
        self.heads = [index - 1 for index in self.openings if index and self.tokens[index - 1].is_name]
        self.partner: dict[int, int] = {}
        open_brackets: list[int] = []
        for index, upper in enumerate(self._uppers):
            if upper in ("(", "["):
                open_brackets.append(index)
            elif upper in (")", "]"):
                opening_bracket = "(" if upper == ")" else "["
                if not open_brackets or self._uppers[open_brackets[-1]] != opening_bracket:
                    raise SqlError(f"no {opening_bracket} belongs to this {upper}", text, self.tokens[index].start)
                self.partner[open_brackets[-1]] = index
                self.partner[index] = open_brackets.pop()
        if open_brackets:
            raise SqlError(
                f"this {self.tokens[open_brackets[-1]].text} is not closed", text, self.tokens[open_brackets[-1]].start
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def _is_case_sensitive(self) -> bool:
        return self.reads_case()

    @cached_property
    def _keeps_case(self) -> bool:
        """Whether names of the text are different names although they differ in case only.

        Most texts write each name in one way, and then the session, which takes a while to answer, is not asked.
        """
        names = {token.name for token in self.tokens if token.is_name}
        return len({name.upper() for name in names}) < len(names) and self._is_case_sensitive

    def upper(self, index: int) -> str:
        """Return the keyword or operator at an index; empty for other tokens and beyond the ends."""
        return self._uppers[index] if 0 <= index < len(self._uppers) else ""

    def says(self, index: int, *words: str) -> bool:
        """Return whether these keywords and operators stand at an index."""
        return index >= 0 and self._uppers[index : index + len(words)] == words

    def slice(self, span: Span) -> str:
        """Return the text of a range of tokens, as written."""
        if span.is_empty:
            return ""
        return self.text[self.tokens[span.start].start : self.tokens[span.stop - 1].stop]

    def flat(self, span: Span) -> Iterator[int]:
        """Yield the indexes of a range that are in no parentheses of it. Opening parentheses are yielded."""
        index, stop, partner = span.start, span.stop, self.partner
        while index < stop:
            yield index
            closing = partner.get(index, index)
            index = (closing if closing > index else index) + 1  # noqa: FURB136 - max takes a fifth of a search

    def split(self, span: Span, separator: str = ",") -> list[Span]:
        """Cut a range at a separator that stands in no parentheses of it."""
        if span.is_empty:
            return []
        parts, begin = [], span.start
        for index in self.flat(span):
            if self.upper(index) == separator:
                parts.append(Span(begin, index))
                begin = index + 1
        return [*parts, Span(begin, span.stop)]

    def path(self, span: Span) -> tuple[str, ...]:
        """Return the names of a reference to a column, in lower case; nothing for another expression."""
        names = range(span.start, span.stop, 2)
        if len(span.indexes) % 2 == 0 or not all(self.tokens[index].is_name for index in names):
            return ()
        if not all(self.upper(index) == "." for index in range(span.start + 1, span.stop, 2)):
            return ()
        return tuple(self.tokens[index].name.lower() for index in names)

    def path_end(self, index: int, stop: int) -> int:
        """Return the index after the reference to a column that begins at a name; after any other token, the next."""
        index += 1
        if not self.tokens[index - 1].is_name:
            return index
        while index + 1 < stop and self.says(index, ".") and self.tokens[index + 1].is_name:
            index += 2
        return index

    def normal_name(self, name: str) -> str:
        """Return a name, of the text or not, in a form that is equal for names that Spark takes for the same."""
        return name if self._is_case_sensitive else name.lower()

    def normal(self, span: Span) -> tuple[tuple[str, str], ...]:
        """Return the tokens of a range in a form that is equal for texts that differ in blanks only.

        Case makes no difference either, unless names are case-sensitive.
        """
        return tuple(
            ("word", token.name if self._keeps_case else token.name.upper())
            if token.is_name
            else (token.kind, token.text)
            for token in self.tokens[span.start : span.stop]
        )

    def error(self, message: str, span: Span, **details: str | None) -> SqlError:
        """Return the error about a range of tokens. A range behind the last token means the end of the text."""
        if span.start >= len(self.tokens):
            end = self.tokens[-1].stop if self.tokens else 0
            return SqlError(message, self.text, end, end + 1, **details)  # type: ignore[arg-type]
        last = self.tokens[max(span.stop - 1, span.start)]
        return SqlError(message, self.text, self.tokens[span.start].start, last.stop, **details)  # type: ignore[arg-type]


class Edits:
    """Replacements in a text. `render` applies them; `origin` tells where a character of the result comes from.

    Args:
        text: The text.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._edits: dict[tuple[int, int], tuple[str | Span, ...]] = {}

    def copy(self) -> Edits:
        """Return a copy that can be changed independently."""
        other = Edits(self._text)
        other._edits = dict(self._edits)
        return other

    def replace(self, span: Span, by: str) -> None:
        """Replace a range of tokens. Earlier replacements within it are dropped."""
        begin, end = self._bounds(span)
        self._edits = {at: new for at, new in self._edits.items() if not (begin <= at[0] and at[1] <= end)}
        self._edits[begin, end] = (by,)

    def arrange(self, span: Span, parts: Sequence[str | Span]) -> None:
        """Replace a range of tokens by texts and by ranges within it, in any order, which keep their replacements."""
        self._edits[self._bounds(span)] = tuple(parts)

    def insert(self, index: int, new: str) -> None:
        """Insert a text behind the token before an index, and behind its replacement."""
        end = self._text.tokens[index - 1].stop
        self._edits[end, end] = (new,)

    def changes(self, index: int) -> bool:
        """Return whether a token has been replaced."""
        at = self._text.tokens[index].start
        return any(
            begin <= at < end
            and not any(isinstance(part, Span) and index in range(part.start, part.stop) for part in new)
            for (begin, end), new in self._edits.items()
        )

    def render(self, span: Span) -> str:
        """Return the text of a range with its replacements."""
        return "".join(piece for _, piece, _ in self._pieces(span))

    def origin(self, span: Span, offset: int) -> int:
        """Return the position in the text from which the character at `offset` of `render(span)` comes."""
        for at, piece, is_new in self._pieces(span):
            if offset < len(piece):
                return at if is_new else at + offset
            offset -= len(piece)
        return self._bounds(span)[1]

    def _bounds(self, span: Span) -> tuple[int, int]:
        all_: Sequence[Token] = self._text.tokens
        return all_[span.start].start, all_[span.stop - 1].stop

    def _pieces(self, span: Span) -> Iterator[tuple[int, str, bool]]:
        """Yield the position, text and novelty of each piece of a rendered range."""
        if span.is_empty:
            return
        begin, end = self._bounds(span)
        at = begin
        for first, last in sorted(self._edits, key=lambda bounds: (bounds[0], -bounds[1])):
            if first < begin or last > end or first < at:
                continue
            yield at, self._text.text[at:first], False
            for part in self._edits[first, last]:
                if isinstance(part, Span):
                    yield from self._pieces(part)
                else:
                    yield first, part, True
            at = last
        yield at, self._text.text[at:end], False
