"""The public test kit for authors of functions, engines and targets: laws, literal epochs, an in-memory exchange."""

from typing import TYPE_CHECKING, Any

from foldflight.testing.epochs import Epoch, run_epochs
from foldflight.testing.laws import LawResult, check_laws
from foldflight.testing.over import OverEpoch, run_over, run_over_epochs
from foldflight.testing.targets import TARGET_COLUMNS, TARGET_KEYS, check_target

if TYPE_CHECKING:
    from foldflight.testing.pair import ExchangePair

__all__ = [
    "TARGET_COLUMNS",
    "TARGET_KEYS",
    "Epoch",
    "ExchangePair",
    "LawResult",
    "OverEpoch",
    "check_laws",
    "check_target",
    "run_epochs",
    "run_over",
    "run_over_epochs",
]


def __getattr__(name: str) -> Any:
    """Import the exchange when it is used: it needs protobuf, which tests of functions do not."""
    if name != "ExchangePair":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foldflight.testing.pair import ExchangePair

    return ExchangePair
