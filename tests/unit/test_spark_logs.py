"""Log records of functions are logged by Spark's workers."""

from __future__ import annotations

import logging

import pytest

from foldflight.client.logs import log_records
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


def test_a_worker_without_logging_writes_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If logging is not configured, lines are written to standard error, which Spark keeps for the executor."""
    ours = logging.getLogger("foldflight.functions")
    monkeypatch.setattr(ours, "parent", None)
    monkeypatch.setattr(ours, "handlers", [])
    monkeypatch.setattr(ours, "level", logging.NOTSET)
    log_records([LogRecord("info", "count", "hello")])
    assert "INFO foldflight.functions.count: hello" in capsys.readouterr().err
