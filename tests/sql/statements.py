"""Statements of Spark's own SQL tests: GROUP BY, HAVING, GROUPING SETS, PIVOT, subqueries and windows.

They lie in `corpus`, with Spark's aggregates. `ours` replaces these by functions of foldflight with the same meaning.
A file begins with one statement of each kind. Those below its line `-- slow` are more of the same kinds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.sql.conftest import NAMES

_FOLDER = Path(__file__).parent / "corpus"
_TWINS = {"SOME": "my_some", "EVERY": "my_every", **{name.upper(): ours for name, ours in NAMES.items()}}


def statements(name: str) -> list[Any]:
    """Return the statements of a file as parameters of a test: one for each `;` at the end of a line."""
    text = (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    first, _, more = text.partition("-- slow\n")
    return [
        pytest.param(each.strip(), marks=marks)
        for part, marks in ((first, ()), (more, pytest.mark.slow))
        for each in part.split(";\n")
        if each.strip()
    ]


def ours(statement: str, only: str = "") -> str:
    """Return a statement with Spark's aggregates replaced by ours; `only` names one that is."""
    names = {only: _TWINS[only]} if only else _TWINS
    return re.sub(
        r"\b(" + "|".join(names) + r")\(", lambda match: names[match[1].upper()] + "(", statement, flags=re.IGNORECASE
    )
