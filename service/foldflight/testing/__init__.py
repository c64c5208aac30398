"""The public test kit for authors of functions and engines: laws, literal epochs, an in-memory exchange."""

from foldflight.testing.epochs import Epoch, run_epochs
from foldflight.testing.laws import LawResult, check_laws

__all__ = ["Epoch", "LawResult", "check_laws", "run_epochs"]
