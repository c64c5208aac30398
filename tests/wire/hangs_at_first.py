"""A module that hangs when it is first imported, like a module that waits for the network."""

from __future__ import annotations

import os
import time
from pathlib import Path

from foldflight import udaf
from tests.wire.limit_functions import _Base

_MARK = Path(os.environ["HANGS_AT_FIRST_MARK"])
if not _MARK.exists():
    _MARK.touch()
    time.sleep(3600)


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class Total(_Base):
    """A sum."""
