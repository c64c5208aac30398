"""Functions whose exchanges the tests of recordings record."""

import itertools

from foldflight import udaf, udf


class Sums:
    total: int = 0
    rows: int = 0


@udaf(input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
class Ratio:
    """The sum of 100 // quantity * price. It fails for the quantity 0."""

    def create_accumulator(self) -> Sums:
        return Sums()

    def accumulate(self, sums: Sums, price, quantity):
        sums.total += 100 // quantity * price
        sums.rows += 1

    def retract(self, sums: Sums, price, quantity):
        sums.total -= 100 // quantity * price
        sums.rows -= 1

    def merge(self, sums: Sums, other: Sums):
        sums.total += other.total
        sums.rows += other.rows

    def get_value(self, sums: Sums):
        return sums.total if sums.rows else None


@udaf(name="mended", input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
class Mended(Ratio):
    """The same, and the quantity 0 counts as 100."""

    def accumulate(self, sums: Sums, price, quantity):
        super().accumulate(sums, price, quantity or 100)


@udaf(input_types=["VARCHAR", "BIGINT"], result_type="VARCHAR")
class Longest:
    """The longest text. It fails when two different texts with a NULL number between them meet."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, texts: list[str], text, number):
        if number is None and texts:
            texts.append("?")
        elif len(texts) == 2 and texts[1] == "?" and text != texts[0]:
            raise LookupError(text)
        elif not texts:
            texts.append(text)

    def get_value(self, texts: list[str]):
        return max(texts, key=len, default=None)


@udaf(input_types=["VARCHAR", "BIGINT"], result_type="BIGINT")
class TwoMistakes:
    """The sum of the numbers beside texts with an `x`. It raises TypeError for a NULL text, and for a NULL number."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, sums: list[int], text, number):
        if text[0] == "x":
            sums[0] += number

    def get_value(self, sums: list[int]):
        return sums[0]


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Pickled:
    """A sum whose accumulator is pickled."""

    def create_accumulator(self):
        return {"sum": 0}

    def accumulate(self, sums, value):
        sums["sum"] += 10 // value

    def get_value(self, sums):
        return sums["sum"]


@udaf(input_types=["STRING"], result_type="BIGINT")
class PickledTexts:
    """The number of texts, which its pickled accumulator keeps. It fails for an empty text."""

    def create_accumulator(self):
        return {"texts": []}

    def accumulate(self, texts, text):
        texts["texts"].append(text)
        if not text:
            raise ValueError("an empty text")

    def get_value(self, texts):
        return len(texts["texts"])


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Shares:
    """How often a whole has the values, in sum. It fails for the value 0."""

    def __init__(self, whole: int):
        self.whole = whole

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, sums: list[int], value):
        sums[0] += self.whole // value

    def get_value(self, sums: list[int]):
        return sums[0]


@udaf(input_types=["DOUBLE"], result_type="STRUCT<sum DOUBLE, parts ARRAY<DOUBLE>>")
class Parts:
    """The sum of numbers, and the numbers."""

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, parts: list[float], value):
        parts.append(value)

    def get_value(self, parts: list[float]):
        return {"sum": sum(parts), "parts": parts}


@udf(input_types=["VARCHAR"], result_type="VARCHAR")
def initial(name):
    return name[0]


@udaf(input_types=["VARCHAR"], result_type="BIGINT")
class Initials:
    """The number of texts. It fails for texts that begin with b."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, count: list[int], text):
        if text.startswith("b"):
            raise LookupError(text)
        count[0] += 1

    def get_value(self, count: list[int]):
        return count[0]


@udaf(name="initials", input_types=["VARCHAR"], result_type="BIGINT")
class InitialsMended(Initials):
    """The same, and texts that begin with b count."""

    def accumulate(self, count: list[int], text):
        count[0] += 1


@udaf(input_types=["TIMESTAMPTZ"], result_type="BIGINT")
class Refuses:
    """Fails for each value."""

    def create_accumulator(self) -> Sums:
        return Sums()

    def accumulate(self, sums: Sums, value):
        raise ValueError(str(value))

    def get_value(self, sums: Sums):
        return None


@udaf(input_types=["INTERVAL"], result_type="BIGINT")
class Spans(Refuses):
    """The same for intervals of months."""


ANSWERS = itertools.count()


@udaf
class Answered:
    """Ask for something that answers otherwise each time."""

    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, xs: list[int], x: int) -> None:
        xs.append(x)

    async def get_value(self, xs: list[int]) -> int:
        return next(ANSWERS)
