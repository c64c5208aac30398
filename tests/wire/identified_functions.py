"""Async aggregate functions that return the ids of their calls, whose states have sets."""

from __future__ import annotations

from foldflight import FunctionContext, udaf


@udaf
class IdOfSets:
    """Return the id of the call, for a typed state with sets."""

    def open(self, context: FunctionContext) -> None:
        self.context = context

    def create_accumulator(self) -> dict[str, set[str]]:
        return {"texts": set()}

    def accumulate(self, texts: dict[str, set[str]], text: str) -> None:
        texts["texts"].add(text)

    async def get_value(self, texts: dict[str, set[str]]) -> str:
        return self.context.call_id


class Sets:
    """Sets in attributes, which are written in the order of the texts."""

    def __init__(self) -> None:
        self.frozen: frozenset[str] = frozenset()


@udaf
class IdOfPickledSets(IdOfSets):
    """Return the id of the call, for a pickled state with sets."""

    def create_accumulator(self):
        return Sets()

    def accumulate(self, sets, text: str) -> None:
        sets.frozen |= {text}
        for each in sets.frozen:  # in another order in each process
            setattr(sets, f"has_{each}", {(each, text), (text, each)})
