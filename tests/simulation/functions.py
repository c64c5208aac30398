"""Functions whose outputs change if a row is lost, folded twice or folded out of order."""

from __future__ import annotations

from typing import Any

from foldflight.functions import FunctionContext, Registry, udaf

__all__ = ["functions"]

_PRIME = 1_000_003


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Moody:
    """Sums values, and raises for some values and some sums."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        if value % 50 == 7:
            raise ValueError(f"{value} after {accumulator}")
        return accumulator + value

    def get_value(self, accumulator: int) -> int:
        if accumulator % 50 == 7:
            raise ValueError(f"{accumulator} at the end")
        return accumulator


def functions(version: str = "1") -> Registry:
    """Return the functions of the servers, in a version."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT", version=version)
    class Digest:
        """A digest of all rows in their order. It has no merge."""

        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            return (accumulator * 31 + value + 1) % _PRIME

        def get_value(self, accumulator: int) -> int:
            return accumulator

    @udaf(input_types=["BIGINT"], result_type="STRING", version=version)
    class Custom:
        """Keeps the last five rows, with states of its own format."""

        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return []

        def accumulate(self, accumulator, value):  # type: ignore[no-untyped-def]
            accumulator.append(value)
            del accumulator[:-5]

        def get_value(self, accumulator):  # type: ignore[no-untyped-def]
            return " ".join(map(str, accumulator))

        def serialize(self, accumulator: Any) -> bytes:
            return " ".join(map(str, accumulator)).encode()

        def deserialize(self, data: bytes) -> Any:
            return [int(each) for each in data.decode().split()]

    @udaf(input_types=["BIGINT"], result_type="BIGINT", version=version)
    class Pickled:
        """Sums values in an accumulator that only pickle can serialize."""

        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return {frozenset(): 0}

        def accumulate(self, accumulator, value):  # type: ignore[no-untyped-def]
            key = frozenset({value % 3})
            accumulator[key] = accumulator.get(key, 0) + value

        def get_value(self, accumulator):  # type: ignore[no-untyped-def]
            return sum(total * (min(key) + 1) for key, total in accumulator.items() if key)

    @udaf(input_types=["BIGINT"], result_type="BIGINT", version=version)
    class Talks:
        """Logs each row."""

        def open(self, context: FunctionContext) -> None:
            self.context = context

        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            self.context.logger.info("row", value=value)
            return accumulator + value

        def get_value(self, accumulator: int) -> int:
            return accumulator

    return Registry.load([Digest, Custom, Pickled, Talks, Moody])
