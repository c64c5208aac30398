"""`foldflight check`: the laws of each function, on generated data."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foldflight.client.connect import EMBEDDED
from foldflight.errors import RejectedError
from foldflight.functions import Function, Registry

if TYPE_CHECKING:
    from foldflight.testing import LawResult  # brings Hypothesis, which a server does without

__all__ = ["check"]

EXIT_BROKEN = 1
_OUTCOMES = {True: ("holds", "green"), False: ("BROKEN", "bold red"), None: ("-", "dim")}


@click.command()
@click.argument("modules", nargs=-1, required=True)
@click.option("--examples", type=click.IntRange(1), default=100, show_default=True, help="Inputs to try on each law.")
@click.option(
    "--set",
    "literals",
    multiple=True,
    metavar="NAME=VALUE",
    help="A direct argument, as a Python literal: --set fraction=0.9. For the functions that have it.",
)
def check(modules: tuple[str, ...], *, examples: int, literals: tuple[str, ...]) -> None:
    """Check the laws of the functions in MODULES (module or embedded:module) on generated data.

    Merge order, retraction as the inverse, any split of the input, state to bytes and back, and so on. Exits with 1 if
    a law is broken, and prints the smallest rows that break it.
    """
    if importlib.util.find_spec("hypothesis") is None:
        raise RejectedError("SETTINGS", "check generates its data with Hypothesis: pip install 'foldflight[testing]'")
    from foldflight.testing import check_laws

    values = _parse(literals)
    console = Console()
    broken = 0
    for function in Registry.load(name.removeprefix(EMBEDDED) for name in modules).authored:
        results = check_laws(function, literals=_for_function(function, values), examples=examples)
        broken += sum(result.passed is False for result in results)
        console.print(laws_table(function, results))
    console.print(f"{broken} broken" if broken else "every law holds", style="bold red" if broken else "green")
    if broken:
        click.get_current_context().exit(EXIT_BROKEN)


def laws_table(function: Function, results: list[LawResult]) -> Table:
    """Return the outcome of each law as a table for people."""
    table = Table("law", "", "detail", title=Text(function.signature), title_justify="left")
    for result in results:
        word, style = _OUTCOMES[result.passed]
        table.add_row(result.law, Text(word, style=style), Text(result.detail))
    return table


def _parse(literals: tuple[str, ...]) -> dict[str, Any]:
    values = {}
    for literal in literals:
        name, equals, text = literal.partition("=")
        try:
            if not equals:
                raise ValueError
            values[name.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            raise click.BadParameter(
                inspect.cleandoc(f"{literal!r} is not NAME=VALUE with a Python literal as the value"),
                param_hint="--set",
            ) from None
    return values


def _for_function(function: Function, values: Mapping[str, Any]) -> dict[str, Any]:
    known = {parameter.name: parameter for parameter in function.parameters}
    missing = [name for name, parameter in known.items() if parameter.required and name not in values]
    if missing:
        raise RejectedError(
            "SIGNATURE",
            f"{function.signature} needs the direct argument {missing[0]!r}; give it with --set {missing[0]}=...",
            function=function.name,
        )
    return {name: value for name, value in values.items() if name in known}
