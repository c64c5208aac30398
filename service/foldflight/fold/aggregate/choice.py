"""The accumulators of a call: the one place that chooses them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from foldflight.errors import FoldflightError, FunctionError
from foldflight.fold.accelerator import accelerated
from foldflight.fold.aggregate.bundled import Bundled
from foldflight.fold.aggregate.counted import Counted
from foldflight.fold.aggregate.distinct import Distinct
from foldflight.fold.aggregate.interpreted import Interpreted
from foldflight.fold.aggregate.vectorised import Vectorised, vectorised
from foldflight.fold.aggregate.viewed import Viewed
from foldflight.functions.author.context import FunctionContext

if TYPE_CHECKING:
    from foldflight.fold.aggregate.accumulators import Accumulators
    from foldflight.fold.aggregate.cached import AskView
    from foldflight.fold.aggregate.calls import BoundCall
    from foldflight.fold.evaluator import Options, Resources
    from foldflight.fold.failures import Failures

__all__ = ["accumulators_for"]


def accumulators_for(
    call: BoundCall, options: Options, resources: Resources, failures: Failures, ask: AskView | None
) -> Accumulators:
    """Return the accumulators of a call, without any slot, after the function's `open`.

    The function's own methods define them: row by row, or with views, or in bundles. A call that counts rows has these
    inside. Otherwise a faster form takes their place if there is one: that of the function itself (Java), its
    vectorised methods, or the accelerator.

    Args:
        call: The call.
        options: How it is evaluated.
        resources: What the process gives it.
        failures: Records the slots that fail.
        ask: Asks an engine that keeps views for entries of one; None if there is no such engine.

    Raises:
        FunctionError: USER_CODE, if the class cannot be instantiated or its `open` raises.
        RejectedError: SETTINGS, if states would be pickled and there is no signer; SIGNATURE, for a function that is
            declared `compile=True` and cannot be compiled.
    """
    bound, signer = call.bound, resources.signer
    context = FunctionContext(
        bound.function.name, job_parameters=options.job_parameters, metrics=resources.metrics, log=resources.log
    )
    inner: Interpreted
    if bound.views:
        asks = None if call.is_counted else ask
        inner = Viewed(bound, context=context, signer=signer, failures=failures, ask=asks)
    else:
        form = Bundled if bound.function.bundled else Interpreted
        inner = form(bound, context=context, signer=signer, failures=failures)
    try:
        if call.rows is not None:
            assert ask is not None  # the rows are a view only if an engine keeps it
            return Distinct(_in_table(inner) or inner, bound, call.rows, failures=failures, ask=ask)
        if call.is_counted:
            return Counted(inner, each_once=call.call.distinct, order=call.call.order, keys=call.keys)
        if inner.methods.loops is not None:
            return inner.methods.loops(inner)
        if isinstance(inner, (Bundled, Viewed)):
            return inner
        return _in_table(inner) or accelerated(inner, resources.accelerator)
    except FoldflightError:
        with contextlib.suppress(FunctionError):  # the first error is the cause
            inner.close()
        raise


def _in_table(inner: Interpreted) -> Vectorised | None:
    """Return accumulators for the function's vectorised methods, if it has them and a table can hold them."""
    return vectorised(inner) if inner.bound.function.folds_many else None
