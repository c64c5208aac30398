"""The public test kit for authors of functions, engines and targets: laws, literal epochs, an in-memory exchange."""

from foldflight.testing.epochs import Epoch, run_epochs
from foldflight.testing.laws import LawResult, check_laws
from foldflight.testing.over import run_over
from foldflight.testing.overstream import OverEpoch, run_over_epochs
from foldflight.testing.pair import ExchangePair
from foldflight.testing.targets import TARGET_COLUMNS, TARGET_KEYS, check_target

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
