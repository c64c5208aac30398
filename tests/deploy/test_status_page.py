"""The status page in a real browser, with servers that work, that hang and that differ."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from foldflight.client import FlightTransport, close_connections
from foldflight.errors import FunctionError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.functions.query.call import Call
from foldflight.server.run.lifecycle import ProcessServer, serving
from tests.browser import browser_page
from tests.wire import waiting_functions, wire_functions
from tests.wire.kit import STATE_KEY, end_epoch, eventually, open_request, rows

pytestmark = pytest.mark.slow

COUNT = Call("count")
NUMBER = re.compile(r"^\d[\d,]*$")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page of Debian's Chromium without errors and without requests to other hosts."""
    with browser_page() as result:
        yield result


@contextlib.contextmanager
def busy(server: ProcessServer) -> Iterator[None]:
    """Fold rows on a server continuously while the block runs."""
    stop = threading.Event()

    def work() -> None:
        batch = rows(*((slot % 5000, 0) for slot in range(20_000)))
        with FlightTransport([server.url], deadline_s=60).open(open_request(COUNT)) as exchange:
            for epoch in range(1, 1_000_000):
                exchange.chunk(batch)
                end_epoch(exchange, epoch)
                if stop.wait(0.05):
                    return

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


@pytest.fixture(scope="module")
def fleet() -> Iterator[ProcessServer]:
    """Two servers, one with fewer functions and other code of one; a third does not answer. Yields the first."""
    with contextlib.ExitStack() as stack:
        hung = stack.enter_context(socket.socket())
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        other = stack.enter_context(serving("examples.weighted_avg", server_id="folds-1", http_port=0))
        peers = (f"127.0.0.1:{other.probes.http_port}", f"127.0.0.1:{hung.getsockname()[1]}")
        server = stack.enter_context(
            serving(
                wire_functions, state_keys=STATE_KEY, server_id="folds-0", http_port=0, peers=peers, memory_limit="8GiB"
            )
        )
        failing_transport = FlightTransport([server.url], deadline_s=60, bounds=FailoverBounds(patience_s=0))
        with (
            contextlib.suppress(FunctionError),
            failing_transport.open(open_request(Call("fails_to_accumulate", ("value",)))) as exchange,
        ):
            exchange.chunk(rows((0, 0, 13)))
            end_epoch(exchange, 1)
        stack.callback(close_connections)
        stack.enter_context(busy(server))
        stack.enter_context(busy(other))
        # The first status that the page shows has all groups of both.
        assert eventually(lambda: [groups(each) for each in (server, other)] == [5000, 5000])
        yield server


def groups(server: ProcessServer) -> float | None:
    """Return how many groups the exchanges of a server have."""
    return server.metrics.registry.get_sample_value("foldflight_groups")


def cells(page: Page, table: str) -> dict[str, list[str]]:
    """Return the rows of a table by their first cell."""
    result: list[list[str]] = page.locator(f"#{table} tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return {row[0]: row[1:] for row in result}


def test_the_page_shows_the_fleet_and_goes_on_showing_it(page: Page, fleet: ProcessServer) -> None:
    """Servers, rates, errors, unreachable servers and differences are shown and updated without a reload."""
    page.goto(f"http://127.0.0.1:{fleet.probes.http_port}/")
    expect(page.locator("#servers tr")).to_have_count(4)
    expect(page.locator("#totals div").nth(1).locator("b")).to_have_text(NUMBER)
    servers = cells(page, "servers")
    head = servers["server"]
    both = [dict(zip(head, servers[name], strict=True)) for name in ("folds-0", "folds-1")]
    assert [each["state"] for each in both] == ["ready", "ready"]
    assert [each["exchanges"] for each in both] == ["1 / 64", "1 / 64"]
    assert [each["groups"] for each in both] == ["5,000", "5,000"]
    assert both[0]["errors"] == "USER_CODE 1"
    assert "USER_CODE 1" in both[0]["ended, refused"]
    (silent,) = [row for row in servers.values() if row[0].startswith("no answer")]
    assert "timed out" in silent[0]
    functions = cells(page, "functions")
    servers_of_fleet = FlightTransport([fleet.url], deadline_s=60).status()["servers"]
    one, two = (each["code_digests"] for each in servers_of_fleet if "problem" not in each)
    assert functions["count"] == ["aggregate", "1", one["count"], "all servers", "vectorised", "-"]
    assert functions["weighted_avg"][2] == " and ".join(sorted([one["weighted_avg"], two["weighted_avg"]]))
    differing_cell = page.locator("#functions tr", has_text=one["weighted_avg"]).locator("td").nth(3)
    expect(differing_cell).to_have_class("left bad")
    expect(differing_cell).to_have_attribute("title", re.compile(rf"{two['weighted_avg']} on folds-1"))
    assert functions["talks"][:2] == ["aggregate", "1"]
    assert functions["talks"][3] == "folds-0"
    assert functions["fails_to_accumulate"][4:] == ["interpreted", "USER_CODE 1"]
    assert re.fullmatch(r"\d+ MiB / 8\.0 GiB", both[0]["memory"])
    first = both[0]["rows"]
    expect(page.locator("#servers tr", has_text="folds-0")).not_to_contain_text(f" {first} ")
    points_of_line = re.compile(r"^(\S+,\S+ ){3}")
    expect(page.locator("#chart polyline")).to_have_attribute("points", points_of_line)
    assert cells(page, "servers")["folds-0"][head.index("rows")] != first
    page.screenshot(path=picture("status"), full_page=True)


def test_the_page_fits_a_phone_and_a_dark_room(page: Page, fleet: ProcessServer) -> None:
    """Nothing scrolls sideways on any screen: where a table is too wide, each row is a card that names its values."""
    page.emulate_media(color_scheme="dark")
    page.goto(f"http://127.0.0.1:{fleet.probes.http_port}/")
    expect(page.locator("#servers tr")).to_have_count(4)
    expect(page.locator("#peak")).to_contain_text("peak")
    for width in (1280, 1024, 768, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for table in page.locator(".table").all():
            table.evaluate("() => new Promise(requestAnimationFrame)")  # the page has seen its new size
            assert table.evaluate("each => each.scrollWidth - each.clientWidth") == 0, width
    page.screenshot(path=picture("status-narrow"), full_page=True)
    memory = page.locator("#servers tr", has_text="folds-0").locator("td", has_text="GiB")
    assert memory.evaluate("each => getComputedStyle(each, '::before').content") == '"memory"'
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")


def test_the_page_says_when_its_server_is_gone(page: Page) -> None:
    """The page says that its server is idle, keeps the last status, says that it is outdated, and tries again."""
    with serving(wire_functions, state_keys=STATE_KEY, server_id="mortal", http_port=0) as server:
        page.goto(f"http://127.0.0.1:{server.probes.http_port}/")
        expect(page.locator("#servers")).to_contain_text("mortal")
        expect(page.locator("#peak")).to_have_text(re.compile(r"^no rows in the last \d+ s$"))
        expect(page.locator("#chart")).to_be_hidden()  # a chart without a row would be a blank band
        page.screenshot(path=picture("status-idle"))
        server.drain()
        expect(page.locator("#servers")).to_contain_text("draining")
    expect(page.locator("#news")).to_contain_text("no answer")
    expect(page.locator("#servers")).to_contain_text("mortal")


def picture(name: str) -> Path:
    """Return the folder of a screenshot: `DEPLOY_PICTURES`, or the temporary folder."""
    folder = Path(os.environ.get("DEPLOY_PICTURES", "/tmp/foldflight-pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.png"


def test_the_page_shows_the_rates_of_calls(page: Page) -> None:
    """The bounds of async functions are added over the servers, as their provider sees them."""
    with serving(waiting_functions, server_id="calls-1", http_port=0) as other:
        peers = (f"127.0.0.1:{other.probes.http_port}",)
        with serving(waiting_functions, server_id="calls-0", http_port=0, peers=peers) as server:
            page.goto(f"http://127.0.0.1:{server.probes.http_port}/")
            expect(page.locator("#calls")).to_have_text(
                "paced may make 120 calls/s on all servers together; "
                "rated may make 2000 calls/s on all servers together"
            )
