"""`foldflight serve`: start a stateless Flight server. Its options are made from the table of settings."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import click

from foldflight.server.ops.build import usable_cpus, use_cpus
from foldflight.server.run.lifecycle import leave_process, run_server
from foldflight.server.run.settings import CONFIG_FLAG, CONFIG_VARIABLE, SETTINGS, Setting, load_settings


@click.pass_context
def _serve(_: click.Context, /, modules: tuple[str, ...], **flags: str | None) -> None:
    """Serve the functions of MODULES, if there are any, and the built-in ones over Arrow Flight.

    Example: foldflight serve weighted_avg --port 8815

    Every option can also be set as an environment variable, or as a key of a TOML file. An option takes precedence over
    a variable, and a variable over the file. The first SIGTERM or SIGINT drains the server: open exchanges may move to
    other servers for up to --drain-s. A second one ends the server at once.
    """
    settings = load_settings({"modules": modules, **flags}, os.environ)
    use_cpus(usable_cpus())
    leave_process(run_server(settings, stop_on_signal()))


def stop_on_signal() -> threading.Event:
    """Return an event that the first SIGTERM or SIGINT sets. The second one ends the process by its default action."""
    stop = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        # In a thread: the handler may have interrupted the main thread while it holds the lock of the event.
        threading.Thread(target=stop.set, name="foldflight-stop").start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def _option(setting: Setting) -> click.Option:
    default = "" if setting.default_text == "none" else f"default {setting.default_text}; "
    return click.Option(
        [setting.flag, setting.name],
        metavar=(setting.unit or "value").upper(),
        help=f"{setting.doc}  [{default}{setting.variable}]",
    )


serve = click.Command(
    "serve",
    callback=_serve,
    help=_serve.__doc__,
    params=[
        click.Argument(["modules"], nargs=-1, metavar="[MODULES]..."),
        click.Option([CONFIG_FLAG, "config"], metavar="FILE", help=f"TOML file with settings.  [{CONFIG_VARIABLE}]"),
        *(_option(setting) for setting in SETTINGS.values() if setting.name != "modules"),
    ],
)
