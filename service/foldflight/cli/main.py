"""`foldflight`: the commands, and how their errors are printed.

Exit codes: 0 success; 1 an error of foldflight, printed as text without a traceback; 2 wrong usage. `serve` has two
more (see `foldflight.server.run.lifecycle`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

import click

from foldflight import __version__
from foldflight.cli.check_command import check
from foldflight.cli.compile_command import compile_modules
from foldflight.cli.demo import demo
from foldflight.cli.fleet_status import status
from foldflight.cli.function_list import functions
from foldflight.cli.init import init
from foldflight.cli.serve import serve
from foldflight.cli.sql import sql
from foldflight.cli.state import state
from foldflight.cli.terminal import printable
from foldflight.errors import FoldflightError, RejectedError
from foldflight.extensions import Extension
from foldflight.recording import RECORDING

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
