"""The log lines of an engine about its servers: text for people, fields for programs."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from foldflight.client.client_logs import log_event, set_up_logger

FIELDS = {"server": "grpc://b:1", "stall_s": 0.25, "problem": 'it said "no": x=1', "server_id": ""}


def test_an_event_has_its_fields_twice(caplog: pytest.LogCaptureFixture) -> None:
    """The line has key=value, quoted if ambiguous; the record has the same fields as attributes."""
    log_event(set_up_logger("foldflight.client", logging.WARNING), logging.WARNING, "an exchange goes on", FIELDS)
    (record,) = caplog.records
    assert record.getMessage() == (
        'an exchange goes on server=grpc://b:1 stall_s=0.25 problem="it said \\"no\\": x=1" server_id=""'
    )
    assert {name: getattr(record, name) for name in FIELDS} == FIELDS
    assert vars(record)["event"] == "an exchange goes on"


UNCONFIGURED = """
import logging
from foldflight.client.client_logs import log_event, set_up_logger

for _ in range(2):
    logger = set_up_logger("foldflight.client", logging.WARNING)
    log_event(logger, logging.INFO, "quiet", {})
    log_event(logger, logging.WARNING, "loud", {"rows": 3})
"""


def test_without_logging_a_line_has_time_and_level() -> None:
    """If logging is not configured, the line on standard error has time, level and logger."""
    run = subprocess.run([sys.executable, "-c", UNCONFIGURED], check=True, capture_output=True, text=True)
    assert [line.partition(",")[2].partition(" ")[2] for line in run.stderr.splitlines()] == [
        "WARNING foldflight.client: loud rows=3"
    ] * 2
