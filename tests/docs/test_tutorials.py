"""The tutorials run, and print what their text says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs import cells
from tests.docs.running import printed_by
from tests.spark_sessions import NOT_CONNECTED

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("[0-9][0-9]-*.md"))
SAMPLE = re.compile(r"\{samp\}`([^`]+)`")


def quotes_of(page: str) -> list[tuple[int, str]]:
    """Return what the text quotes of the outputs, in the role `samp`: (line, quotation)."""
    return [(page.count("\n", 0, match.start()) + 1, match[1]) for match in SAMPLE.finditer(page)]


def outputs_of(output: str) -> list[tuple[int, str]]:
    """Return the output of each cell: (line of the cell, text)."""
    parts = (part.partition("\n") for part in output.split(cells.CELL)[1:])
    return [(int(line), text) for line, _, text in parts]


def unprinted_lines(page: str, output: str) -> list[str]:
    """Return the quotations that no cell before them has printed."""
    outputs = outputs_of(output)
    return [
        f"line {line}: {quotation}"
        for line, quotation in quotes_of(page)
        if not any(quotation in text for cell, text in outputs if cell < line)
    ]


def test_there_are_eleven_tutorials() -> None:
    """Each tutorial has its page, and each page has cells and quotes their output."""
    assert [page.name[:2] for page in PAGES] == [f"{number:02}" for number in range(1, 12)]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert cells.cells_of(text)
        assert quotes_of(text)


def test_a_quotation_needs_a_cell_before_it() -> None:
    """A quotation that only a later cell prints is found, and one that no cell prints."""
    page = "```{code-cell} python\n:tags: [x]\n\n1 + 1\n```\n\nIt is {samp}`2`, not {samp}`3` or {samp}`5`.\n\n"
    page += "```{code-cell} python\n3\n```\n"
    assert [(cell.line, cell.code) for cell in cells.cells_of(page)] == [(4, "1 + 1\n"), (10, "3\n")]
    assert unprinted_lines(page, f"{cells.CELL}4\n2\n{cells.CELL}10\n3\n") == ["line 7: 3", "line 7: 5"]


@pytest.mark.slow
@pytest.mark.flaky(reruns=3, reruns_delay=2, only_rerun=[NOT_CONNECTED])
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_prints_what_its_text_quotes(path: Path, tmp_path: Path) -> None:
    """Each page runs in a fresh process to its end, and its cells print each quotation that stands after them."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "service"),
        "TMPDIR": str(temporary),
    }
    output = printed_by(cells.__file__, path, folder=tmp_path, environment=environment)
    assert unprinted_lines(path.read_text(encoding="utf-8"), output) == []
