"""Apache Beam's `CombineFn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foldflight.functions.author.adapters import Adapter, Method


class CombineFn:
    """Replaces Beam's base class in shipped code."""

    def setup(self, *arguments: Any, **keywords: Any) -> None:
        """Do nothing, as in Beam."""

    def teardown(self, *arguments: Any, **keywords: Any) -> None:
        """Do nothing, as in Beam."""

    def compact(self, accumulator: Any, *_: Any, **__: Any) -> Any:
        """Return the accumulator, as in Beam."""
        return accumulator


class _Beam(Adapter):
    """The conventions of Beam."""

    def bound_methods(self, author_methods: Any, instance: Callable[[], Any]) -> dict[str, Any]:  # noqa: ARG002 - as the others
        def take_one_argument(call: Callable[[Any, Any], Any]) -> Callable[..., Any]:
            return lambda accumulator, *values: call(accumulator, values[0] if len(values) == 1 else values)

        return {
            "create_accumulator": author_methods.create_accumulator,
            "accumulate": take_one_argument(author_methods.accumulate),
            "retract": take_one_argument(author_methods.retract),
            "merge": lambda accumulator, other: author_methods.merge([accumulator, other]),
            "get_value": author_methods.get_value,
            "open": lambda _: author_methods.open(),
            "close": author_methods.close,
        }


_BASE: Final = ("apache_beam.transforms.core", "CombineFn")
BEAM: Final = _Beam(
    "beam",
    "CombineFn of Beam",
    {
        "create_accumulator": Method("create_accumulator", required=True),
        "accumulate": Method("add_input", ("accumulator",), "element", required=True),
        "retract": Method("retract", ("accumulator",), "element"),
        "merge": Method("merge_accumulators", ("accumulators",), required=True),
        "get_value": Method("extract_output", ("accumulator",), required=True),
        "open": Method("setup"),
        "close": Method("teardown"),
    },
    marks=("add_input", "merge_accumulators", "extract_output"),
    returns_accumulator=True,
    base=_BASE,
    replaced={_BASE: CombineFn},
    declaring=("_type_hints", "default_type_hints", "get_accumulator_coder", "display_data"),
)
