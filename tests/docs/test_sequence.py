"""The sequence diagrams of the documents are drawn for the site."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.sequence import draw

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"


def test_each_diagram_is_drawn_with_all_its_words() -> None:
    """Each `mermaid` block becomes SVG with the text of its participants, messages and loops."""
    result = re.findall(r"```mermaid\n(.*?)```", TEXT, re.DOTALL)
    assert result
    for block in result:
        words = {text.text for text in ElementTree.fromstring(draw(block)).iter(f"{SVG}text")}
        assert set(re.findall(r">>\w+: (.+)", block)) <= words
        assert {part for name in re.findall(r" as (.+)", block) for part in name.split("<br>")} <= words
        assert set(re.findall(r"loop (.+)", block)) <= words


def test_an_arrow_leads_from_lane_to_lane() -> None:
    """A message begins at the lane of its sender and its head is at the lane of its receiver."""
    drawing = ElementTree.fromstring(draw("sequenceDiagram\nparticipant A as a\nparticipant B as b\nB-->>A: go\n"))
    paths = {path.get("class"): path.get("d") or "" for path in drawing.iter(f"{SVG}path")}
    boxes = sorted(float(box.get("x", "")) + float(box.get("width", "")) / 2 for box in drawing.iter(f"{SVG}rect"))
    numbers = [float(each) for each in re.findall(r"[\d.]+", paths["answer"])]
    assert [numbers[0], numbers[2]] == [boxes[1], boxes[0]]
    assert f"L{boxes[0]:.0f} " in paths["head"]


@pytest.mark.parametrize("line", ["A->>C: unknown lane", "Note over A: text", "end"])
def test_what_cannot_be_drawn_is_an_error(line: str) -> None:
    """A line that is not understood is named. It is not left out."""
    with pytest.raises(ValueError, match=re.escape(repr(line))):
        draw(f"sequenceDiagram\nparticipant A as a\n{line}\n")
    with pytest.raises(ValueError, match="only a sequenceDiagram"):
        draw("stateDiagram-v2")
