"""Handlers of Snowflake and Doris: an instance of the author's class contains the state of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from foldflight.functions.author.adapters import Adapter, Method, in_place
from foldflight.functions.types.serializer import Nullable, StateSerializer
from foldflight.functions.types.values import CastError


class Handled:
    """An accumulator of the Snowflake adapter: the handler of a group, or a state from which it is created on demand.

    Pickled states contain it under this name, or under one that `foldflight.fold.pickles` lists.
    """

    __slots__ = ("handler", "state")

    def __init__(self, handler: Any, state: Any = None) -> None:
        self.handler = handler
        self.state = state

    def aggregate_state(self) -> Any:
        """Return the state, which the system sends between nodes."""
        return self.state if self.handler is None else self.handler.aggregate_state

    def __reduce__(self) -> Any:
        return Handled, (None, self.aggregate_state())


class _HandledSerializer(StateSerializer):
    """Accumulators of the Snowflake adapter, as their states."""

    def __init__(self, state: StateSerializer) -> None:
        self.state = state
        self.arrow = state.arrow

    def to_arrow(self, values: Any) -> pa.Array:
        states = [value.aggregate_state() for value in values]
        missing_index = next((index for index, state in enumerate(states) if state is None), None)
        if missing_index is not None and not isinstance(self.state, Nullable):
            wrong = "aggregate_state returned None, which its annotation does not have; annotate it as `... | None`"
            raise CastError(missing_index, "RESULT_TYPE", wrong)
        return self.state.to_arrow(states)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [Handled(None, state) for state in self.state.from_arrow(array)]


def _of_states(migrate: Callable[[str, Any], Any]) -> Callable[[str, Any], Handled]:
    """Return a `migrate` for accumulators, from the author's `migrate` for states of handlers."""

    def migrate_handled(version: str, state: Any) -> Handled:
        return Handled(None, migrate(version, state.aggregate_state() if isinstance(state, Handled) else state))

    return migrate_handled


class _Snowflake(Adapter):
    """The conventions of Snowflake, which Doris also has."""

    def bound_methods(self, author_methods: Any, instance: Callable[[], Any]) -> dict[str, Any]:  # noqa: ARG002 - a handler per group
        def of(accumulator: Handled) -> Any:
            """Return the handler of an accumulator. It is restored from its state on demand."""
            if accumulator.handler is None:
                handler = instance()
                handler.merge(accumulator.state)
                accumulator.handler, accumulator.state = handler, None
            return accumulator.handler

        return {
            "create_accumulator": lambda: Handled(instance()),
            "accumulate": in_place(lambda accumulator, *values: of(accumulator).accumulate(*values)),
            "retract": in_place(lambda accumulator, *values: of(accumulator).retract(*values)),
            "merge": in_place(lambda accumulator, other: of(accumulator).merge(other.aggregate_state())),
            "get_value": lambda accumulator: of(accumulator).finish(),
        }

    def migrate(self, method: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
        return _of_states(method)

    def serializer(self, state: StateSerializer, *, is_annotated: bool) -> StateSerializer:
        return _HandledSerializer(state if is_annotated else Nullable(state))


SNOWFLAKE: Final = _Snowflake(
    "snowflake",
    "handler of Snowflake or Doris",
    {
        "accumulate": Method("accumulate", (), "each", required=True),
        "retract": Method("retract", (), "each"),
        "merge": Method("merge", ("other_state",), required=True),
        "get_value": Method("finish", required=True),
        "serialize": Method("aggregate_state", required=True, is_property=True),
    },
    marks=("aggregate_state",),
    returns_accumulator=False,
)
