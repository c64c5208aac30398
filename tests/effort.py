"""How many examples the tests of hypothesis try: all of them in CI (`--hypothesis-profile=thorough`), otherwise few."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["QUICK", "examples", "examples_of"]

QUICK = "quick"

# No test asserts a time, so none has hypothesis's deadline for an example: a busy machine breaks it.
settings.register_profile(QUICK, deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=100)


def examples_of(thorough: int) -> int:
    """Return how many examples a test tries that tries this many in CI: otherwise a tenth, and at least five."""
    return max(5, thorough * settings.default.max_examples // 100)


def examples(thorough: int) -> settings:
    """Return the settings of a test that tries this many examples in CI."""
    return settings(max_examples=examples_of(thorough))
