"""Descriptions of lifted calls: with one, an engine aggregates the rows of a call without Python.

The extension `lift` makes descriptions and reads them. Without it nothing is lifted: each row is folded, and listings
and plans tell why.
"""

from __future__ import annotations

import functools
import json
import logging
from typing import Final, Protocol

from foldflight.extensions import Extension
from foldflight.functions.author.spec import AnyFunction, BoundFunction, Function

MISSING: Final = "this installation of foldflight lifts nothing: it lacks the package foldflight.ext.lift"
"""Why a call is not lifted, if the extension is missing."""

_logger: Final = logging.getLogger(__name__)


class Describer(Protocol):
    """What the extension `lift` provides for descriptions of calls."""

    def describe(self, bound: BoundFunction) -> str:
        """Return, as JSON, how the rows of a call are lifted, or the reason why they are not."""

    def reason(self, text: str) -> str:
        """Return why a call with this description is not lifted; empty if it is.

        Raises:
            RejectedError: BAD_FRAME, if the description is damaged.
        """


_LIFT: Final = Extension[Describer]("lift")


def lift_text(bound: BoundFunction) -> str:
    """Return the description of a call (`OpenedCall.lift`): how its rows are lifted, or the reason why they are not."""
    describer = _describer()
    return json.dumps({"reason": MISSING}) if describer is None else describer.describe(bound)


def listed_lift(function: AnyFunction) -> str:
    """Return `lift_text` of a call of a function whose types are fixed; empty for any other function."""
    if not isinstance(function, Function) or function.input_types is None:
        return ""
    if any(each.required for each in function.parameters):
        return ""
    return lift_text(function.bind(function.input_types, {}))


def unlifted_reason(text: str) -> str:
    """Return why a call with a description is not lifted; empty if it is. Raises RejectedError BAD_FRAME."""
    describer = _describer()
    return MISSING if describer is None else describer.reason(text)


@functools.cache
def _describer() -> Describer | None:
    describer = _LIFT.find()
    if describer is None:
        _logger.warning("%s, so all rows are folded: the results are the same, and batches may take longer", MISSING)
    return describer
