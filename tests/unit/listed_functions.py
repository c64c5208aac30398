"""Functions for the listing: one that is compiled, and one that is not."""

from contextlib import nullcontext

from foldflight import udaf


@udaf
class Plain:
    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def get_value(self, accumulator: int) -> int:
        return accumulator


@udaf
class Careful(Plain):
    def accumulate(self, accumulator: int, value: int) -> int:
        with nullcontext():
            return accumulator + value
