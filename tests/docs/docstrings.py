"""The public names of the API page, and the examples in their docstrings."""

from __future__ import annotations

import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["FLAGS", "IN_SPARK", "PUBLIC", "examples_of", "value_of"]

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE  # tables that Spark prints end with an empty line
_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
_ENTRY = re.compile(r"^\.\. auto(?:function|class|exception):: (\S+)$", re.MULTILINE)
PUBLIC = tuple(_ENTRY.findall(_PAGE.read_text(encoding="utf-8")))
"""The functions and classes that the page lists."""
IN_SPARK = tuple(name for name in PUBLIC if name.startswith("foldflight.spark."))
"""Those whose examples need a session, `spark`; tests/spark runs these."""


def value_of(name: str) -> Any:
    """Return what a public name stands for."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def examples_of(name: str, variables: dict[str, Any]) -> Iterator[doctest.DocTest]:
    """Yield the examples in the docstrings of a public function or class, and of its methods."""
    for each in doctest.DocTestFinder().find(value_of(name), name, module=False, globs=variables):
        if each.examples:
            yield each
