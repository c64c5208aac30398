"""`foldflight init`: write a project with a function, its tests, a batch job, a stream job and an image."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import click

from foldflight.errors import RejectedError

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
