"""Functions that behave in another way in the process that compiles than in a server."""

import sys
import threading
from os import _exit

from foldflight import udaf
from tests.unit.listed_functions import Plain

_spec = sys.modules["__main__"].__spec__
COMPILES = _spec is not None and _spec.name == "foldflight.server.run.compile_process"


@udaf
class Dies(Plain):
    def __init__(self) -> None:
        if COMPILES:
            _exit(3)


@udaf
class Hangs(Plain):
    def __init__(self) -> None:
        if COMPILES:
            threading.Event().wait()


@udaf
class Times(Plain):
    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value * self.factor
