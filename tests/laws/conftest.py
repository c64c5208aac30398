"""What compiles functions in the tests of laws and of compiled code, and what they replace in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foldflight.ext.compiler import Programs, compiled
from foldflight.ext.compiler.store import LoopStore
from foldflight.testing import laws


@pytest.fixture(scope="module")
def hot() -> Programs:
    """Programs that compile at the first row, or load what an earlier run of the same sources stored."""
    return Programs(LoopStore("user"), hot_rows=0)


@pytest.fixture
def laws_compile_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Programs], None]:
    """Set what compiles functions for the law of compiled code, instead of what the process shares and stores."""
    return lambda programs: monkeypatch.setattr(laws, "PROGRAMS_AT_ONCE", programs)


@pytest.fixture
def texts_are_copied_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the texts of accumulators as soon as a thousand bytes of rows are not used any more."""
    monkeypatch.setattr(compiled, "_RETAINED_BYTES_MIN", 1000)
