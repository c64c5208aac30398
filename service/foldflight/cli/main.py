"""`foldflight`: the group of commands, how their errors are printed, and the short commands themselves.

`serve` starts a Flight server, and its options are made from the table of settings; `functions` lists the functions of
a server or a module; `compile` compiles functions into a folder, from which servers load them; `init` writes a project.

Exit codes: 0 success; 1 an error of foldflight, printed as text without a traceback; 2 wrong usage. `serve` has two
more (see `foldflight.server.run.lifecycle`).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from foldflight import __version__
from foldflight.cli.check_command import check
from foldflight.cli.demo import demo
from foldflight.cli.fleet_status import status
from foldflight.cli.sql import sql
from foldflight.cli.state import state
from foldflight.cli.terminal import printable, target_options
from foldflight.client import connect
from foldflight.client.connect import EMBEDDED
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import FunctionInfo
from foldflight.extensions import Extension
from foldflight.fold.accelerator import accelerator_of
from foldflight.fold.mode import Mode
from foldflight.functions import Registry
from foldflight.functions.author.spec import FunctionKind
from foldflight.lift import unlifted_reason
from foldflight.recording import RECORDING
from foldflight.server.run.lifecycle import leave_process, run_server
from foldflight.server.run.settings import (
    CONFIG_FLAG,
    CONFIG_VARIABLE,
    SETTINGS,
    Setting,
    load_settings,
    usable_cpus,
    use_cpus,
)


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


@click.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@target_options
def functions(target: str, *, as_json: bool, **connection: Any) -> None:
    """List the functions of TARGET: grpc://host:port, grpc+tls://host:port, or a module (also embedded:module).

    Example: foldflight functions grpc://127.0.0.1:8815

    Nothing is compiled for it: `compiled when hot` is what the methods' code tells. What only the functions that they
    call, or the types of values, show is known here as soon as they have been compiled on this host, by `foldflight
    check`, `foldflight compile` or rows. From then on it is told in the same words as by `foldflight check`.
    """
    client_functions = connect(target if ":" in target else f"{EMBEDDED}{target}", **connection)
    transport = client_functions.transport
    all_infos = transport.infos(look=True)
    infos = sorted(all_infos, key=lambda info: (_is_built_in(info), info.name))
    if as_json:
        click.echo(json.dumps([_facts(info) for info in infos], indent=2, default=repr))
        return
    console = Console()
    for info in infos:
        console.print(function_text(info), soft_wrap=True)  # long lines are wrapped by the terminal, not cut


def function_text(info: FunctionInfo) -> Text:
    """Return the description of a function as text. "any order": a row may be retracted before it is accumulated."""
    folding = info.folding
    how = "" if folding is None else folding.mode
    if info.kind is not FunctionKind.AGGREGATE:
        return _describe(info, _scalar_facts(info, how))
    retracts = "retracts in any order" if info.invertible else "retracts" if info.retract else "append-only"
    facts = [f"version {info.version}", retracts, "merges" if info.merge else "no merge", f"{info.codec} state", how]
    if info.lift and not unlifted_reason(info.lift):
        facts.append("lifted in batches")
    if _is_built_in(info):
        facts.insert(0, "built in")
    return _describe(info, facts)


def _scalar_facts(info: FunctionInfo, how: str) -> list[str]:
    """Return the facts about a scalar or table function."""
    kind = f"{info.kind} function" + (f" ({info.vectorised} columns)" if info.vectorised else "")
    return [kind, f"version {info.version}", "" if info.deterministic else "not deterministic", how]


def _describe(info: FunctionInfo, facts: list[str]) -> Text:
    text = Text.assemble((info.signature, "bold"), "\n    ", (", ".join(filter(None, facts)), "cyan"))
    if doc := info.doc.strip().partition("\n")[0]:
        text.append(f"\n    {doc}", "dim")
    folding = info.folding
    if folding is not None and folding.reason:
        is_fast = folding.mode in (Mode.COMPILED, Mode.COMPILED_WHEN_HOT)
        how = f"{folding.mode}, but" if is_fast else f"{folding.mode} because:"
        text.append(f"\n    {how} {folding.reason}", "yellow")
    if info.lift and (reason := unlifted_reason(info.lift)):
        text.append(f"\n    not lifted because: {reason}", "yellow")
    return text


def _is_built_in(info: FunctionInfo) -> bool:
    return info.name in Registry()


def _facts(info: FunctionInfo) -> dict[str, Any]:
    facts = dataclasses.asdict(info)
    del facts["folding"]
    return {**facts, "folded": info.folded}


@click.command("compile")
@click.argument("modules", nargs=-1, required=True)
@click.option(
    "--into",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder, which is made if it is missing. It must belong to the user who uses it.",
)
def compile_modules(modules: tuple[str, ...], *, folder: Path) -> None:
    """Compile the functions of MODULES into a folder, so that servers and tests start with them.

    Example: foldflight compile weighted_avg --into compiled

    MODULES are names of modules (module or embedded:module). A server takes the folder as its setting compiled_folder.
    Compiled code is for this processor and these versions of Python, numba and foldflight; if any of them differs, the
    server compiles again. Prints for each function whether it is compiled, and the reason if it is not; reasons are
    stored, too.
    """
    accelerator = accelerator_of(folder)
    for function in Registry.load([name.removeprefix(EMBEDDED) for name in modules]).authored:
        click.echo(f"{function.name}: {accelerator.warm(function)}")


_PROJECT = Path(__file__).parent / "project"
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.pyc")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
def init(folder: Path) -> None:
    """Write a project into the new folder DIR: a function, its tests, two jobs and an image.

    Example: foldflight init orders

    The tests pass as they are: run `pytest` in the folder. Its README.md says what each file is for.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RejectedError("SETTINGS", f"{folder} is not empty; name a new folder, so that no file of yours is lost")
    try:
        shutil.copytree(_PROJECT, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
    except OSError as error:
        raise RejectedError("SETTINGS", f"{folder} cannot be written: {error.strerror or error}") from error
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        click.echo(f"wrote {path}")
    missing = any(importlib.util.find_spec(name) is None for name in ("pytest", "hypothesis"))
    install = "pip install 'foldflight[testing]' pytest && " if missing else ""
    click.echo(f"\nNext:  cd {folder} && {install}pytest        (README.md says what each file is for)")


EXIT_ERROR = 1


class _Commands(click.Group):
    """Prints errors of foldflight as text, without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except FoldflightError as error:
            click.echo(printable(f"foldflight: {error}"), err=True)
            context.exit(EXIT_ERROR)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="foldflight")
def cli() -> None:
    """Aggregate, scalar and table functions in Python for Spark and other engines; the engine stores the state."""
    # Modules are also found in the working directory, as with `python -m`. An installed script does not add it.
    if str(folder := os.getcwd()) not in sys.path:  # noqa: PTH109 (sys.path has strings)
        sys.path.insert(0, folder)


_CONFORMANCE: Final = Extension[click.Command]("conformance")


def _command(name: str, load: Callable[[], click.Command]) -> click.Command:
    """Return the command of an extension, or one that tells that the extension is missing."""
    try:
        return load()
    except RejectedError as error:
        load_error = error

    @click.command(name, context_settings={"ignore_unknown_options": True}, short_help="Missing in this installation.")
    @click.argument("arguments", nargs=-1)
    def missing(arguments: tuple[str, ...]) -> None:  # noqa: ARG001 - it takes all
        raise load_error

    return missing


cli.add_command(init)
cli.add_command(serve)
cli.add_command(functions)
cli.add_command(status)
cli.add_command(check)
cli.add_command(compile_modules)
cli.add_command(_command("conform", _CONFORMANCE.load))
cli.add_command(demo)
cli.add_command(state)
cli.add_command(_command("replay", lambda: RECORDING.load().command()))
cli.add_command(sql)


def main() -> None:
    """Run the command that the arguments name."""
    cli(prog_name="foldflight")


if __name__ == "__main__":
    main()
