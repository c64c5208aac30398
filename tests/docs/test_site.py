"""The documentation is built without a warning, and its pages work in a real browser."""

from __future__ import annotations

import functools
import html.parser
import http.server
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import foldflight
import foldflight.spark
import foldflight.testing
from foldflight.errors import FoldflightError
from tests.browser import browser_page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MAIN = (
    "index",
    "tutorials/01-first-function",
    "how-to/index",
    "how-to/cdc-to-a-table",
    "reference/index",
    "reference/api",
    "reference/errors",
    "reference/server",
    "reference/messages",
    "explanation/architecture",
    "explanation/performance",
    "gallery/index",
    "gallery/t_digest",
)
# The size of the smallest text of a picture, as the page shows it.
SMALLEST_TEXT_PX = """async image => {
    const text = await (await fetch(image.src)).text();
    const drawn = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    const sizes = [drawn, ...drawn.querySelectorAll("[font-size]")].map(each => Number(each.getAttribute("font-size")));
    return Math.min(...sizes) * image.clientWidth / Number(drawn.getAttribute("viewBox").split(" ")[2]);
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, format, *args):  # noqa: A002 - the name of the base class
        pass


class Connections(html.parser.HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        result = dict(attrs)
        self.targets |= {result[name] or "" for name in ("href", "src") if name in result}
        self.anchors |= {result["id"] or ""} if "id" in result else set()


@pytest.fixture(scope="module")
def built_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the documentation, built by the command of `make docs`; links that lead nowhere are warnings."""
    folder = tmp_path_factory.mktemp("site")
    recipe = re.search(r"^docs:.*\n\t\$\(BIN\)/python (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    # test_tutorials.py runs the tutorials, so the build executes the first one only.
    words = [sys.executable, *recipe[1].split()[:-2], "-t", "quick"]
    assert {"--fail-on-warning", "--keep-going"} <= set(words)
    words += ["docs", str(folder)]
    build = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert build.returncode == 0, build.stderr[-6000:]
    return folder


@pytest.fixture(scope="module")
def site(built_folder: Path) -> Iterator[str]:
    """The URL of the documentation."""
    handler = functools.partial(Quiet, directory=built_folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page(site: str) -> Iterator[Page]:
    """A page of the browser."""
    with browser_page() as result:
        yield result


@pytest.mark.parametrize("name", MAIN)
def test_a_main_page_fits_every_screen(page: Page, site: str, name: str) -> None:
    """It has a heading and its navigation, does not scroll sideways on a phone, and is dark if that is preferred."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    page.goto(f"{site}/{name}.html")
    expect(page.locator("h1").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(each) for each in re.findall(r"\d+", shade)[:3]) < 60
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")
    expect(page.locator(".sidebar-tree").get_by_role("link", name="How-to guides")).to_be_visible()


def test_the_home_page_cuts_nothing(page: Page, site: str) -> None:
    """Its command is seen whole, and the text of its picture is large enough to read, on a laptop and on a phone."""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(f"{site}/index.html")
        for block in page.locator(".highlight pre").all():
            assert block.evaluate("each => each.scrollWidth - each.clientWidth") <= 0, width
        picture = page.locator("article img:visible")
        expect(picture).to_have_count(1)
        assert picture.evaluate(SMALLEST_TEXT_PX) > 10, width
    page.set_viewport_size({"width": 1280, "height": 800})


def test_a_block_of_code_is_copied_by_its_button(page: Page, site: str) -> None:
    """Each block of code has a button, which copies the whole block; of a terminal's session, the commands alone."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for name, text, clipboard_text in (
        ("index", "make demo", "make demo"),
        (
            "tutorials/06-fleet-with-compose",
            "$ docker compose run",
            "docker compose run --rm --no-deps spark python job.py",
        ),
    ):
        page.goto(f"{site}/{name}.html")
        block = page.locator("div.highlight", has_text=text).first
        block.hover()
        block.get_by_role("button", name="copy").click()
        expect(block.get_by_role("button")).to_have_text("copied")
        assert page.evaluate("navigator.clipboard.readText()") == clipboard_text


def test_each_link_inside_the_site_leads_somewhere(built_folder: Path) -> None:
    """Each link and picture of each page is a file of the site, and each anchor exists on its page.

    CI has no general internet. `make links` also asks the other hosts.
    """
    pages = {}
    for path in built_folder.rglob("*.html"):
        pages[path] = Connections()
        pages[path].feed(path.read_text(encoding="utf-8"))
    assert len(pages) > 50
    broken_links = []
    for path, page in pages.items():
        for target in page.targets:
            url = urllib.parse.urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            anchor = urllib.parse.unquote(url.fragment)
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file].anchors):
                broken_links.append(f"{path.relative_to(built_folder)}: {target}")
    assert broken_links == []


def test_the_search_finds_a_guide_and_a_setting(page: Page, site: str) -> None:
    """The search box finds words of guides and of the reference."""
    page.goto(f"{site}/index.html")
    for word, result in (
        ("Debezium", "Database changes into a table"),
        ("fold_s_max", "Settings and metrics"),
    ):
        page.locator(".sidebar-search").fill(word)
        page.locator(".sidebar-search").press("Enter")
        expect(page.locator("#search-results")).to_contain_text(result)


def test_each_code_of_an_error_has_its_anchor(page: Page, site: str) -> None:
    """The place that the text of an error names exists on the page of errors."""
    page.goto(f"{site}/reference/errors.html")
    for error in FoldflightError.__subclasses__():
        for code in error.codes:
            expect(page.locator(f"[id='{code.lower()}']")).to_have_count(1)


def test_the_reference_has_every_public_name(page: Page, site: str) -> None:
    """Each name that the packages export has an entry."""
    page.goto(f"{site}/reference/api.html")
    entries = set(page.locator("dl.py > dt").evaluate_all("found => found.map(each => each.id.split('.').pop())"))
    exported_names = {*foldflight.__all__, *foldflight.spark.__all__, *foldflight.testing.__all__} - {"__version__"}
    assert exported_names - entries == set()
