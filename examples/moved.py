"""A class of PyFlink's kind and functions of PySpark's kind, as foldflight has them."""

from collections.abc import Iterator
from datetime import datetime

from foldflight import udaf, udf, udtf


@udaf(skip_nulls=True)
class LastSeen:
    """The latest time: a class as for PyFlink, with annotations in place of get_result_type."""

    def create_accumulator(self) -> datetime | None:
        return None

    def accumulate(self, last: datetime | None, at: datetime) -> datetime:
        return at if last is None else max(last, at)

    def merge(self, last: datetime | None, other: datetime | None) -> datetime | None:
        return other if last is None or (other is not None and other > last) else last

    def get_value(self, last: datetime | None) -> datetime | None:
        return last


@udf
def shout(text: str, mark: str = "!") -> str:
    return text.upper() + mark


@udtf
def parts(text: str, separator: str = "-") -> Iterator[str]:
    yield from text.split(separator)
