"""The log has one line for each event, bound ids, and no secrets."""

from __future__ import annotations

import io
import json

from foldflight.server.ops.logs import make_logger


def test_json_line_has_event_level_time_and_bound_ids() -> None:
    """An event is one JSON object with the fields bound to its logger."""
    stream = io.StringIO()
    make_logger(stream).bind(exchange="ab12").info("exchange opened", calls=2)
    event = json.loads(stream.getvalue())
    assert (event["event"], event["level"], event["exchange"], event["calls"]) == ("exchange opened", "info", "ab12", 2)
    assert event["timestamp"].endswith("Z")


def test_exception_is_inside_the_json_line() -> None:
    """A traceback is part of the line."""
    stream = io.StringIO()
    try:
        raise LookupError("lost")
    except LookupError:
        make_logger(stream).exception("failed", error_id="1")
    assert stream.getvalue().count("\n") == 1
    assert "LookupError: lost" in json.loads(stream.getvalue())["exception"]


def test_console_line_is_plain_text() -> None:
    """The console format is plain text without colour codes."""
    stream = io.StringIO()
    make_logger(stream, log_format="console").warning("slow", seconds=3)
    assert "slow" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_lower_levels_are_not_written() -> None:
    """Records below `log_level` are not written."""
    stream = io.StringIO()
    logger = make_logger(stream, log_level="warning")
    logger.info("no")
    logger.error("yes")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["yes"]


def test_secrets_are_blanked() -> None:
    """A field with the name of a secret is not written, in either format."""
    for log_format in ("json", "console"):
        stream = io.StringIO()
        make_logger(stream, log_format=log_format).info(
            "x", token="hush-1", state_keys=["hush-2"], Authorization="hush-3"
        )
        assert "hush" not in stream.getvalue()


def test_numbers_of_tokens_are_no_secrets() -> None:
    """Functions that call models log how many tokens they used; a numeric password is still a secret."""
    stream = io.StringIO()
    make_logger(stream).info("asked", field_tokens="42", prompt_tokens=7, tokens=["hush"], field_password="1234")
    event = json.loads(stream.getvalue())
    assert (event["field_tokens"], event["prompt_tokens"]) == ("42", 7)
    assert (event["tokens"], event["field_password"]) == ("(not logged)", "(not logged)")
