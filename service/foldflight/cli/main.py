"""`foldflight`: the commands, and how their errors are printed.

Exit codes: 0 success; 1 an error of foldflight, printed as text without a traceback; 2 wrong usage. `serve` has two
more (see `foldflight.server.run.lifecycle`).
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from foldflight import __version__
from foldflight.cli.conform import conform
from foldflight.cli.demo import demo
from foldflight.cli.init import init
from foldflight.cli.laws import check
from foldflight.cli.listing import functions
from foldflight.cli.serve import serve
from foldflight.cli.sql import sql
from foldflight.cli.state import state
from foldflight.cli.status import status
from foldflight.cli.terminal import printable
from foldflight.errors import FoldflightError
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


def _replay() -> click.Command:
    """Return the command of the extension, or one that says that the extension is missing."""
    room = RECORDING.find()
    if room is not None:
        return room.command()

    @click.command("replay", context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1)
    def missing(arguments: tuple[str, ...]) -> None:  # noqa: ARG001 - it takes all
        """Fold a recording again: missing in this installation."""
        RECORDING.load()

    return missing


cli.add_command(init)
cli.add_command(serve)
cli.add_command(functions)
cli.add_command(status)
cli.add_command(check)
cli.add_command(conform)
cli.add_command(demo)
cli.add_command(state)
cli.add_command(_replay())
cli.add_command(sql)


def main() -> None:
    """Run the command that the arguments name."""
    cli(prog_name="foldflight")


if __name__ == "__main__":
    main()
