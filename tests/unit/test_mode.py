"""How a function is folded is a value that the protocol transmits as text."""

from __future__ import annotations

import pytest

from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.encoding import decode_info, encode_info
from foldflight.exchange.frames import FunctionInfo
from foldflight.fold.mode import Folding, Mode
from foldflight.functions import Registry


@pytest.mark.parametrize(
    "folding", [*map(Folding, Mode), Folding(Mode.INTERPRETED, "accumulate has try: or with"), None]
)
def test_a_mode_is_transmitted_with_its_reason(folding: Folding | None) -> None:
    """Mode and reason are transmitted unchanged, also a reason with a colon."""
    info = FunctionInfo.of(Registry()["count"], folding=folding)
    assert decode_info(encode_info(info)) == info
    assert info.folded == ("" if folding is None else str(folding))


def test_the_text_of_a_mode_has_not_changed_since_version_1() -> None:
    """Earlier engines and servers write and read the same texts."""
    info = FunctionInfo.of(Registry()["count"], folding=Folding(Mode.INTERPRETED, "its argument value is STRING"))
    assert pb.FunctionInfo.FromString(encode_info(info)).folded == "interpreted: its argument value is STRING"
    assert [str(mode) for mode in Mode] == [
        "interpreted",
        "vectorised",
        "compiled",
        "counted",
        "java",
        "compiled when hot",
        "decided when bound",
        "bundled",
        "async",
    ]


def test_a_mode_of_a_later_version_is_unknown() -> None:
    """An unknown text of a later version does not cause a refusal of the function."""
    assert Folding.from_text("folded by a later version: for a reason") is None
