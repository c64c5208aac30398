"""A page of a real browser for tests: it makes no request to another host and reports no mistake."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import Page, expect, sync_playwright

LONG_MS = 120_000  # what a busy machine may need for anything


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    """A page of Debian's Chromium. Errors of the page and requests to other hosts fail at the end."""
    chromium = shutil.which("chromium")
    assert chromium, "no chromium: apt-get install chromium (tests/deploy/tools.sh does)"
    messages: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=LONG_MS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(LONG_MS)
        expect.set_options(timeout=LONG_MS)
        # On a busy machine the browser warns of a slow network.
        page.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: messages.append(request.url) if "127.0.0.1" not in request.url else None)
        yield page
        browser.close()
    # What a browser says of a server that has gone, or of an icon that is not there, is no mistake of the page.
    mistakes = [each for each in messages if "Failed to load resource" not in each]
    assert not mistakes, mistakes
