"""Statements of Spark's own SQL tests: GROUP BY, HAVING, GROUPING SETS, PIVOT, subqueries and windows.

They lie in `corpus`, with Spark's aggregates. `ours` replaces these by functions of foldflight with the same meaning.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.sql.conftest import NAMES

_FOLDER = Path(__file__).parent / "corpus"
_TWINS = {"SOME": "my_some", "EVERY": "my_every", **{name.upper(): ours for name, ours in NAMES.items()}}


def statements(name: str) -> list[str]:
    """Return the statements of a file, one for each `;` at the end of a line."""
    text = (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    return [each.strip() for each in re.split(r";\n", text) if each.strip()]


def ours(statement: str, only: str = "") -> str:
    """Return a statement with Spark's aggregates replaced by ours; `only` names one that is."""
    names = {only: _TWINS[only]} if only else _TWINS
    return re.sub(
        r"\b(" + "|".join(names) + r")\(", lambda found: names[found[1].upper()] + "(", statement, flags=re.IGNORECASE
    )
