"""A function that kills its server once, and raises for a row: for traces through a failover to the author's line."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from foldflight import FunctionContext, udaf

LINE = next(
    number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "raise " + "ValueError" in line
)


@udaf(input_types=["BIGINT"], result_type="BIGINT", version="3", compile=False)
class Fatal:
    """The number of rows. The first row of 7 kills the server, if the job names a file, and a row of 13 raises."""

    def open(self, context: FunctionContext) -> None:
        self.context = context
        self.once = context.job_parameters.get("once")

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        if value == 7 and self.once and not Path(self.once).exists():
            Path(self.once).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if value == 5:
            self.context.logger.warning("five")
        if value == 13:
            raise ValueError(f"{value} is not expected")
        return accumulator + 1

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> int:
        return accumulator
