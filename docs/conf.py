"""Sphinx builds the documentation from this folder: `make docs` writes build/docs/index.html."""

from __future__ import annotations

import re
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "foldflight"
copyright = "the foldflight authors, Apache-2.0"  # noqa: A001 - the name that Sphinx reads
release = version = installed("foldflight")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["generate.py"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"})]

html_theme = "furo"
html_title = f"foldflight {release}"
html_copy_source = False

# Every heading down to the third level has an anchor, as on code hosts. A link to a page or an anchor that does not
# exist is a warning, and `make docs` makes warnings errors.
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]

# The tutorials are notebooks. They are executed when they changed; an exception in a cell fails the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_timeout = 300
nb_execution_in_temp = True  # what a tutorial writes does not stay beside its page
# `-t quick` executes the first tutorial only. tests/docs/test_tutorials.py runs all of them.
nb_execution_excludepatterns = ["tutorials/0[2-9]-*", "tutorials/1*"] if "quick" in tags else []  # noqa: F821 - Sphinx defines tags
nb_execution_raise_on_error = True
nb_merge_streams = True

# Docstrings are written in the style of Google, with `code` in single backticks.
default_role = "code"
highlight_language = "text"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

# Documents of the repository that are pages of the site, too.
PAGES = {
    "README.md": "/index.md",
    "ARCHITECTURE.md": "/explanation/architecture.md",
    "SECURITY.md": "/explanation/security.md",
    "proto/README.md": "/reference/protocol.md",
    "helm/foldflight/README.md": "/reference/chart.md",
    "CHANGELOG.md": "/changelog.md",
}
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#|/)([^)#\s]+)(#[^)\s]*)?\)")


def led_inside(text: str, folder: Path) -> str:
    """Return Markdown with its links to documents of the repository leading to their pages.

    A link to a folder or another document of the repository, which the site does not have, becomes its name. A link to
    another file becomes a download.
    """

    def replaced(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        path = (folder / target).resolve()
        if not path.is_relative_to(ROOT) or not path.exists():
            return link[0]
        inside = path.relative_to(ROOT).as_posix()
        if inside in PAGES:
            return f"[{words}]({PAGES[inside]}{anchor or ''})"
        if inside.startswith("docs/") and path.is_file():
            return f"[{words}](/{inside.removeprefix('docs/')}{anchor or ''})"
        if path.is_dir() or path.suffix == ".md":
            return f"{words} (`{inside}` in the repository)"
        return f"[{words}](/../{inside})"

    return LINK.sub(replaced, text)


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Lead the links of a page inside the site."""
    if app.env.doc2path(page).suffix == ".md":
        source[0] = led_inside(source[0], app.env.doc2path(page).parent)


def read_included(app: Sphinx, path: Path, _page: str, source: list[str]) -> None:
    """Lead the links of a document that a page includes inside the site."""
    source[0] = led_inside(source[0], (Path(app.srcdir) / path).resolve().parent)


def read_docstring(_app: Sphinx, _what: str, _name: str, _of: object, _options: object, lines: list[str]) -> None:
    """Mark the indented blocks of a docstring as code, as the docstring is read without Sphinx, too."""
    for place in range(len(lines) - 2, 0, -1):
        before, blank, after = lines[place - 1 : place + 2]
        if before and not before.startswith(" ") and not blank and after.startswith("    "):
            lines[place:place] = ["", ".. code-block:: python"]


def setup(app: Sphinx) -> None:
    """Connect what reads pages."""
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)  # before napoleon's
