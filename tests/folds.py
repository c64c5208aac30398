"""Folds with the options and resources that a test names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foldflight.fold.aggregate.bound_calls import BoundCall
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.resources import Resources
from foldflight.functions.query.call import Options

_RESOURCES = ("signer", "metrics", "log", "accelerator", "ask")


def open_fold(calls: Sequence[BoundCall], *, isolates: bool = False, **options: Any) -> Fold:
    """Return a fold of calls. Options are fields of `Options` and `Resources`; with `ask`, the engine keeps views."""
    resources = Resources(**{name: options.pop(name) for name in _RESOURCES if name in options})
    return Fold(calls, Options(isolate_errors=isolates, keeps_views=resources.ask is not None, **options), resources)
