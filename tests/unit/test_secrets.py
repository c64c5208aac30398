"""Secrets of the environment have asterisks in their place, in whatever form they stand; other values have not."""

from __future__ import annotations

import io
import json
from urllib.parse import quote, quote_plus

import pytest

from foldflight.exchange.frames import Log
from foldflight.functions.author.context import LogRecord
from foldflight.server.error_translation import without_secrets
from foldflight.server.ops.logs import make_logger
from foldflight.shipping.secrets import mask_of_environment, masked_text

SECRET = 'sk "+/é\\ 0123456789'


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET, safe=""),
        quote(SECRET),
        quote_plus(SECRET),
        quote_plus(SECRET, safe="/"),
    ],
)
@pytest.mark.parametrize("around", ["", "\n", " "])
def test_each_form_of_a_secret_is_masked(monkeypatch, form: str, around: str) -> None:
    """As it is, in JSON, in a URL, and without the line break that a file of secrets ends with."""
    monkeypatch.setenv("MODEL_API_KEY", SECRET + around)
    assert masked_text(f"<{form}>") == f"<{'*' * len(form)}>"
    assert mask_of_environment()(f"<{form}>".encode()) == b"<" + b"*" * len(form.encode()) + b">"


@pytest.mark.parametrize("name", ["FOLDFLIGHT_TOKENS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "SSH_KEY_PATH", "KEYS_DIR"])
def test_the_place_of_a_secret_is_no_secret(monkeypatch, name: str) -> None:
    """An error about a file that cannot be read has its path."""
    monkeypatch.setenv(name, "/etc/secrets/of-this-server")
    assert masked_text("cannot read /etc/secrets/of-this-server") == "cannot read /etc/secrets/of-this-server"


def test_short_values_are_no_secrets(monkeypatch) -> None:
    """Otherwise a password such as `postgres` would be masked in every text that has this word."""
    monkeypatch.setenv("DB_PASSWORD", "postgres")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true      \n      ")
    assert masked_text("postgres says true") == "postgres says true"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_lone_surrogates_are_logged(monkeypatch, log_format: str) -> None:
    """Foreign data and names of files have them; a log line with one is no error, neither here nor for an engine."""
    monkeypatch.setenv("MODEL_API_KEY", "sk-0123456789")
    stream = io.StringIO()
    make_logger(stream, log_format=log_format).info("lost \ud800 sk-0123456789")
    assert "lost" in stream.getvalue()
    assert "sk-0123456789" not in stream.getvalue()
    masked_log = without_secrets(Log((LogRecord("info", "f", "lost \ud800 sk-0123456789", {"at": "\udcff"}, 0),)))
    assert masked_log == Log((LogRecord("info", "f", "lost \ud800 " + "*" * 13, {"at": "\udcff"}, 0),))
