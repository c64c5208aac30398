"""Log records of functions are logged by Spark's workers."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from foldflight.client.client_logs import log_records
from foldflight.functions.author.context import LogRecord


def test_records_become_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    """A record is logged under its function's name, at its level, with its fields and its group's keys."""
    caplog.set_level(logging.DEBUG, "foldflight.functions")
    records = [
        LogRecord("warning", "weighted_avg", "odd weight", {"weight": "-1"}, slot=3),
        LogRecord("debug", "", "100% of 3 records dropped"),
    ]
    log_records(records, lambda slot: {"origin": f"JFK {slot}"})
    assert caplog.record_tuples == [
        ("foldflight.functions.weighted_avg", logging.WARNING, "odd weight weight=-1 origin='JFK 3'"),
        ("foldflight.functions", logging.DEBUG, "100% of 3 records dropped"),
    ]


UNCONFIGURED = """
from foldflight.client.client_logs import log_records
from foldflight.functions.author.context import LogRecord

log_records([LogRecord("info", "count", "hello")])
"""


def test_a_worker_without_logging_writes_to_standard_error() -> None:
    """If logging is not configured, lines are written to standard error, which Spark keeps for the executor."""
    run = subprocess.run([sys.executable, "-c", UNCONFIGURED], check=True, capture_output=True, text=True)
    assert "INFO foldflight.functions.count: hello" in run.stderr
