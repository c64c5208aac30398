"""`foldflight compile`: compile functions into a folder, from which servers load them."""

from __future__ import annotations

from pathlib import Path

import click

from foldflight.client.connect import EMBEDDED
from foldflight.fold.accelerator import accelerator_of
from foldflight.functions import Registry


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
