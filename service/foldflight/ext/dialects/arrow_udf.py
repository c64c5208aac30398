"""Aggregate classes of arrow-udf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foldflight.functions.author.adapters import Adapter, Method


class _ArrowUdf(Adapter):
    """The conventions of arrow-udf."""

    def bound_methods(self, author_methods: Any, instance: Callable[[], Any]) -> dict[str, Any]:  # noqa: ARG002 - as the others
        def return_accumulator(call: Callable[..., Any]) -> Callable[..., Any]:
            """Return a call whose result is the new state; None stands for a state that was changed in place."""

            def change(state: Any, *values: Any) -> Any:
                result = call(state, *values)
                if result is None and (isinstance(state, (list, dict, set, bytearray)) or hasattr(state, "__dict__")):
                    return state
                return result

            return change

        return {
            "create_accumulator": author_methods.create_accumulator,
            "accumulate": return_accumulator(author_methods.accumulate),
            "retract": return_accumulator(author_methods.retract),
            "merge": return_accumulator(author_methods.merge),
            "get_value": author_methods.get_value or (lambda state: state),  # without `finish`, the state is the result
        }


ARROW_UDF: Final = _ArrowUdf(
    "arrow-udf",
    "aggregate of arrow-udf",
    {
        "create_accumulator": Method("create_state", required=True),
        "accumulate": Method("accumulate", ("state",), "each", required=True),
        "retract": Method("retract", ("state",), "each"),
        "merge": Method("merge", ("state", "other")),
        "get_value": Method("finish", ("state",)),
    },
    marks=("create_state",),
    returns_accumulator=True,
)
