"""The public test kit for authors of functions and engines: laws, literal epochs, and an in-memory exchange."""

from foldflight.testing.epochs import Epoch, run_epochs
from foldflight.testing.laws import LawResult, check_laws
from foldflight.testing.over import run_over
from foldflight.testing.overstream import OverEpoch, run_over_epochs
from foldflight.testing.pair import ExchangePair

__all__ = [
    "Epoch",
    "ExchangePair",
    "LawResult",
    "OverEpoch",
    "check_laws",
    "run_epochs",
    "run_over",
    "run_over_epochs",
]
