"""What is told about a call: its `Lift` as text, or why it has none."""

from __future__ import annotations

import json
from typing import Final

from foldflight.errors import RejectedError
from foldflight.functions.author.scalar import AnyFunction
from foldflight.functions.author.spec import BoundFunction, Function
from foldflight.lift.analysis import lift_of
from foldflight.lift.plan import Plan
from foldflight.lift.source import Refused
from foldflight.lift.tree import Lift

__all__ = ["lift_text", "lifted_of", "listed_lift"]

_UNKNOWN: Final = "the server does not tell; it is of an older version"


_KNOWN_MAX: Final = 1024
_known: dict[tuple[type, str, bool], str] = {}


def lift_text(bound: BoundFunction) -> str:
    """Return a JSON document with the `Lift` of a call, or with the reason why it has none."""
    key = (bound.function.cls, bound.fingerprint, bound.function.skip_nulls)
    if key not in _known:
        while len(_known) >= _KNOWN_MAX:
            _known.pop(next(iter(_known)), None)
        _known[key] = _text(bound)
    return _known[key]


def listed_lift(function: AnyFunction) -> str:
    """Return `lift_text` of a call of a function whose types are fixed; empty for any other function."""
    if not isinstance(function, Function) or function.input_types is None:
        return ""
    if any(each.required for each in function.parameters):
        return ""
    return lift_text(function.bind(function.input_types, {}))


def _text(bound: BoundFunction) -> str:
    try:
        lift = lift_of(bound)
        Plan.of(lift)
        if not lift.unretractable:
            Plan.of(lift, has_kinds=True)
    except Refused as refused:
        return json.dumps({"reason": str(refused)})
    except RecursionError:
        return json.dumps({"reason": "its methods are nested too deeply"})
    return lift.to_json()


def lifted_of(text: str) -> tuple[Lift | None, str]:
    """Return the `Lift` of a text of `lift_text`, or None and the reason.

    Raises:
        RejectedError: BAD_FRAME, if the text is damaged.
    """
    if not text:
        return None, _UNKNOWN
    try:
        data = json.loads(text)
        reason = data.get("reason")
    except (ValueError, AttributeError) as error:
        raise RejectedError("BAD_FRAME", f"the description of a lifted function cannot be read: {error}") from None
    if reason is not None:
        return None, str(reason)
    lift = Lift.from_json(text)
    return lift, "" if lift is not None else "the server describes it in a newer form"
