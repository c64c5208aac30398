"""Draws the sequence diagrams of the documents as SVG, so that a page shows them without a script or a network.

Code hosts render a block in the language `mermaid`. For the site, Sphinx calls the directive `mermaid` with the same
text. It knows what the documents use: participants, messages with `->>` and `-->>`, loops, and `<br>` in names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

__all__ = ["draw", "setup"]

_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_MESSAGE = re.compile(r"(\w+)(-?->>)(\w+): (.+)")
_LOOP = re.compile(r"loop (.+)")
# In pixels: the width of a character, the height of a message, the box of a participant, the least gap between lanes.
_CHARACTER, _STEP, _BOX, _BOX_HEIGHT, _GAP = 6.6, 30, 150, 40, 160


@dataclass(frozen=True)
class _Message:
    """An arrow from one lane to another, or to itself."""

    source: int
    target: int
    words: str
    is_answer: bool
    y: int

    @property
    def width(self) -> float:
        """The width that the words need."""
        return len(self.words) * _CHARACTER + 24


@dataclass(frozen=True)
class _Loop:
    """A frame around messages."""

    words: str
    top: int
    bottom: int


@dataclass(frozen=True)
class _Diagram:
    """What a diagram shows: the names of its lanes, and what is on them."""

    names: list[str]
    messages: list[_Message]
    loops: list[_Loop]
    height: int


def draw(text: str) -> str:
    """Return a sequence diagram as an SVG element. ValueError: a line that is not understood."""
    diagram = _parsed(text)
    lanes = _lanes(len(diagram.names), diagram.messages)
    width = lanes[-1] + max([_BOX / 2, *_overhang(lanes, diagram.messages)]) + 4
    attributes = f'viewBox="0 0 {width:.0f} {diagram.height}" width="{width:.0f}" role="img"'
    parts = [
        f'<svg class="sequence" {attributes} aria-label="Sequence diagram" xmlns="http://www.w3.org/2000/svg">',
        *(_lane(x, name, diagram.height) for x, name in zip(lanes, diagram.names, strict=True)),
        *(_frame(loop, width) for loop in diagram.loops),
        *(_arrow(message, lanes) for message in diagram.messages),
        "</svg>",
    ]
    return "".join(parts)


def _parsed(text: str) -> _Diagram:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines[:1] != ["sequenceDiagram"]:
        msg = f"only a sequenceDiagram can be drawn, not {lines[:1]}"
        raise ValueError(msg)
    names: dict[str, str] = {}
    messages: list[_Message] = []
    loops: list[_Loop] = []
    open_reply: list[tuple[str, int]] = []
    y = _BOX_HEIGHT + 10
    for line in lines[1:]:
        if found := _PARTICIPANT.fullmatch(line):
            names[found[1]] = found[2]
        elif found := _LOOP.fullmatch(line):
            open_reply.append((found[1], y + _STEP // 2))
            y += _STEP
        elif line == "end" and open_reply:
            y += _STEP // 2
            loops.append(_Loop(*open_reply.pop(), y))
        elif (found := _MESSAGE.fullmatch(line)) and {found[1], found[3]} <= set(names):
            y += _STEP
            lane = list(names).index
            messages.append(_Message(lane(found[1]), lane(found[3]), found[4], found[2] == "-->>", y))
        else:
            msg = f"a line of a sequence diagram is not understood: {line!r}"
            raise ValueError(msg)
    return _Diagram(list(names.values()), messages, loops, y + 24)


def _lanes(count: int, messages: list[_Message]) -> list[float]:
    """Return the middle of each lane, so far apart that the words of each message fit beside its lanes."""
    gaps = [float(_GAP)] * (count - 1)
    for each in messages:
        left, right = sorted((each.source, each.target))
        if left == right < len(gaps):
            gaps[left] = max(gaps[left], each.width + 30)
        for place in range(left, right):
            gaps[place] = max(gaps[place], each.width / (right - left))
    lanes = [_BOX / 2 + 4]
    for gap in gaps:
        lanes.append(lanes[-1] + gap)
    return lanes


def _overhang(lanes: list[float], messages: list[_Message]) -> Iterator[float]:
    """Yield what the messages of the last lane to itself need on its right."""
    return (each.width + 30 for each in messages if each.source == each.target == len(lanes) - 1)


def _lane(x: float, name: str, height: int) -> str:
    """Return the line of a participant and the box with its name."""
    words = name.split("<br>")
    middle = _BOX_HEIGHT / 2 + 5 - 8 * (len(words) - 1)
    texts = "".join(
        f'<text class="{"where" if place else "who"}" x="{x:.0f}" y="{middle + 16 * place:.0f}">{escape(line)}</text>'
        for place, line in enumerate(words)
    )
    return (
        f'<path class="lane" d="M{x:.0f} {_BOX_HEIGHT} V{height - 4}"/>'
        f'<rect x="{x - _BOX / 2:.0f}" y="1" width="{_BOX}" height="{_BOX_HEIGHT}" rx="4"/>{texts}'
    )


def _frame(loop: _Loop, width: float) -> str:
    """Return the frame of a loop with its words."""
    return (
        f'<rect class="loop" x="1" y="{loop.top}" width="{width - 2:.0f}" height="{loop.bottom - loop.top}" rx="4"/>'
        f'<text class="what" x="8" y="{loop.top + 16}">{escape(loop.words)}</text>'
    )


def _arrow(message: _Message, lanes: list[float]) -> str:
    """Return the arrow of a message and its words."""
    start, end, y = lanes[message.source], lanes[message.target], message.y
    line = "answer" if message.is_answer else "message"
    if start == end:
        head = f"M{start + 10:.0f} {y + 2} l-8 4 l8 4"
        path = f"M{start:.0f} {y - 10} h22 v16 H{start + 2:.0f}"
        words = f'<text class="self" x="{start + 30:.0f}" y="{y + 2}">'
    else:
        back = -8 if end > start else 8
        head = f"M{end + back:.0f} {y - 4} L{end:.0f} {y} L{end + back:.0f} {y + 4}"
        path = f"M{start:.0f} {y} H{end:.0f}"
        words = f'<text x="{(start + end) / 2:.0f}" y="{y - 6}">'
    return f'<path class="{line}" d="{path}"/><path class="head" d="{head}"/>{words}{escape(message.words)}</text>'


class _Mermaid(SphinxDirective):
    """The directive `mermaid`: a diagram as inline SVG, in a frame that scrolls on narrow screens."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the drawing, or the error with its place."""
        try:
            drawing = draw("\n".join(self.content))
        except ValueError as error:
            raise self.error(str(error)) from None
        return [nodes.raw("", f'<div class="diagram">{drawing}</div>', format="html")]


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("mermaid", _Mermaid)
