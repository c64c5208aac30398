"""Scalar and table functions: one row in and one value out, or several rows."""

import pyarrow as pa
import pyarrow.compute as pc

from foldflight import udf, udtf


@udf
def speed(distance: int, minutes: int) -> float:
    """Return kilometres an hour; compiled to machine code once it is hot."""
    return None if distance is None or not minutes else distance * 1.609 / (minutes / 60)


@udf(vectorised="arrow")
class Normalise:
    """Lower-case texts; a vectorised function takes whole columns."""

    def __init__(self, suffix: str = "") -> None:  # direct arguments: normalise("text", suffix="!")
        self.suffix = suffix

    def eval(self, texts: pa.StringArray) -> pa.StringArray:
        return pc.binary_join_element_wise(pc.utf8_lower(texts), self.suffix, "")


@udtf(result_types={"letter": "STRING", "at": "INT"})
def letters(text: str):
    """Yield the letters of a text with their positions."""
    for at, letter in enumerate(text or ""):
        yield letter, at
