"""Write docs/reference/server.md: the settings and metrics of a server, from the tables in the code."""

from __future__ import annotations

from pathlib import Path

from foldflight.server.ops.metrics import metrics_table
from foldflight.server.run.settings import settings_table

PAGE = Path(__file__).parent / "reference" / "server.md"
TEXT = """\
# Reference: settings and metrics of a server

The tables on this page are written by `docs/generate.py` from `service/foldflight/server/run/settings.py` and
`service/foldflight/server/ops/metrics.py`. How a server works is in [ARCHITECTURE.md](../../ARCHITECTURE.md).

## Settings

Each setting is a flag of `foldflight serve`, an environment variable and a key of a settings file. A flag takes
precedence over a variable, and a variable over the settings file that `--config` or `FOLDFLIGHT_CONFIG` names.

{settings}
### The tokens file

Each line of `tokens_file` has a token and then the functions that it opens: names or shell patterns, separated by
commas, spaces or tabs. A token alone opens all functions. Names that no function has are logged. Lines that begin with
`#` are comments.

    # the pricing job
    2f9c0e8d7b6a5f4e  weighted_avg, acme_*
    83b1c2d3e4f5a697

## Metrics

`/metrics` of `http_port` shows these metrics. Counts of all worker processes are added up. The number of values of each
label is bounded. The rules and the dashboard in [helm/foldflight/](../../helm/foldflight/) are checked against this
table.

{metrics}"""


def page() -> str:
    """Return the page."""
    return TEXT.format(settings=settings_table(), metrics=metrics_table())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
