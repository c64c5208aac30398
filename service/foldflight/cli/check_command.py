"""`foldflight check`: check the laws of functions on generated data."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.util
import inspect
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from foldflight.client.connect import EMBEDDED
from foldflight.errors import FoldflightError, RejectedError
from foldflight.functions import AnyFunction, Function, Registry, ScalarFunction
from foldflight.functions.registry import java_functions

if TYPE_CHECKING:
    from foldflight.testing import LawResult  # imports Hypothesis, which servers do not have


EXIT_BROKEN = 1
MEMORY_MAX = 4 << 30
"""Bytes that a function may take while it is checked: generated rows have the largest numbers of their types."""

_OBJECTS_AT_ONCE = 20_000  # new objects after which Python looks for garbage
_BAR = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("laws"),
    TimeElapsedColumn(),
)
_PICKLED = (
    "`foldflight serve` signs pickled states with FOLDFLIGHT_STATE_KEYS, and does not start without it; functions with "
    "typed states need no key"
)
_OUTCOMES = {True: ("holds", "green"), False: ("BROKEN", "bold red"), None: ("-", "dim")}


@click.command()
@click.argument("modules", nargs=-1, required=True)
@click.option(
    "--examples",
    multiple=True,
    metavar="NUMBER|NAME=VALUES",
    help="The number of inputs for each law (100), or the values of an argument as a Python list, for functions that "
    "take only some values: --examples \"code=['EUR', 'USD']\". Repeat it for several.",
)
@click.option(
    "--set",
    "literals",
    multiple=True,
    metavar="NAME=VALUE",
    help="A direct argument as a Python literal, for the functions that have it: --set fraction=0.9.",
)
@click.option(
    "--function", "names", multiple=True, metavar="NAME", help="Check this function only. Repeat it for several."
)
@click.option("--quiet", is_flag=True, help="Print broken laws and functions that cannot be checked only.")
def check(
    modules: tuple[str, ...],
    *,
    examples: tuple[str, ...],
    literals: tuple[str, ...],
    names: tuple[str, ...],
    quiet: bool,
) -> None:
    """Check the laws of the functions in MODULES on generated data.

    Example: foldflight check weighted_avg

    MODULES are names of modules (module or embedded:module), or Java classes (functions.jar::com.acme.WeightedAvg).

    Merge order, retraction as the inverse, any split of the input, state to bytes and back, and so on; for scalar and
    table functions that not every row is an error, any split and order of the rows, and compiled code beside the
    interpreter. Of an async function only the declaration and the pickle are checked: generated rows would be sent to
    what it calls. An aggregate function is given NULLs only if it takes a row of them: one that raises an error there
    breaks no law, and the table has the error. Prints the smallest rows that break a law, and why states are
    pickled, if they are. A function that cannot be checked does not stop the others. Exits with 1 if a law is broken or
    a function cannot be checked.
    """
    if importlib.util.find_spec("hypothesis") is None:
        raise RejectedError("SETTINGS", "check generates its data with Hypothesis: pip install 'foldflight[testing]'")
    direct = literals_in(literals)
    count, values = _examples_in(examples)
    console = Console()
    unchecked_functions: list[str] = []
    outcomes: list[tuple[str, LawResult]] = []  # with the title of the function
    in_java = [name for name in modules if "::" in name]
    sources = [name.removeprefix(EMBEDDED) for name in modules if name not in in_java]
    registries = [Registry.load([source]) for source in (*sources, *java_functions(in_java))]
    # Names may repeat, because no query calls the functions.
    functions = _select_functions([function for registry in registries for function in registry.authored], names)
    for name in values:
        if not any(name in function.input_names for function in functions):
            raise click.BadParameter(f"no function has an argument {name}", param_hint="--examples")
    for name in direct:
        if not any(name == parameter.name for function in functions for parameter in function.parameters):
            parameter_names = sorted({parameter.name for function in functions for parameter in function.parameters})
            raise click.BadParameter(
                f"no function has a direct argument {name}; there are {', '.join(parameter_names) or 'none'}",
                param_hint="--set",
            )
    name_counts = Counter(function.name for function in functions)
    titles = [
        function.signature if name_counts[function.name] == 1 else f"{function.signature} of {function.where}"
        for function in functions
    ]
    progress_bar = Progress(*_BAR, console=console, transient=True, disable=not console.is_terminal)
    with progress_bar as progress, _rare_collections():
        for function, title in zip(functions, titles, strict=True):
            try:
                values_of_arguments = {name: each for name, each in values.items() if name in function.input_names}
                with _bounded_memory(MEMORY_MAX):
                    results = _results(function, _arguments_of(function, direct), count, values_of_arguments, progress)
            except FoldflightError as error:
                unchecked_functions.append(function.name)
                text = Text.assemble((title, "italic"), "\n", (f"not checked: {error}", "bold red"))
                console.print(text, soft_wrap=True)
                continue
            if len({result.detail for result in results}) == 1 and results[0].passed is None:
                text = Text.assemble((title, "italic"), "\n", (f"no law applies: {results[0].detail}", "yellow"))
                console.print(text, soft_wrap=True)
                continue
            outcomes += [(title, result) for result in results]
            results_to_show = [result for result in results if result.passed is False or not quiet]
            if results_to_show:
                console.print(laws_table(title, results_to_show))
            if not quiet and isinstance(function, Function) and function.capabilities.codec == "pickle":
                reason = f"its states are pickled: {function.capabilities.codec_reason}. {_PICKLED}"
                console.print(Text(reason, style="yellow"), soft_wrap=True)
    if not _print_end(console, outcomes, unchecked_functions):
        click.get_current_context().exit(EXIT_BROKEN)


def _print_end(console: Console, outcomes: list[tuple[str, LawResult]], unchecked_functions: list[str]) -> bool:
    """Print what came of all laws; return False if one is broken or a function is not checked."""
    from foldflight.testing.laws import EFFECT

    causes = [(title, result.cause or result.law) for title, result in outcomes if result.passed is False]
    unchanged_titles = [title for title, result in outcomes if result.law == EFFECT and result.passed is None]
    if causes:
        cause_count = len({*causes})
        console.print(f"{len(causes)} broken, by {cause_count} cause{'s' * (cause_count > 1)}", style="bold red")
    if unchecked_functions:
        console.print(f"not checked: {', '.join(unchecked_functions)}", style="bold red")
    if causes or unchecked_functions:
        return False
    if unchanged_titles:
        end = (
            f"every law holds, but no row changes the result of {', '.join(unchanged_titles)}: does accumulate or "
            "get_value lack a `return`?"
        )
        console.print(Text(end, style="bold yellow"), soft_wrap=True)
    elif any(result.passed for _, result in outcomes):
        console.print("every law holds", style="green")
    return True


@contextlib.contextmanager
def _bounded_memory(bytes_max: int) -> Iterator[None]:
    """Let the process take this many more bytes. A function that needs more gets a MemoryError, and is not killed."""
    if not sys.platform.startswith("linux"):
        yield
        return
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    used_bytes = 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [each for each in (soft, hard, used_bytes + bytes_max) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python look for garbage only after many new objects: compiling makes millions, of which nearly all stay.

    With the usual threshold, the search takes a twelfth of the time of a check that compiles.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(max(thresholds[0], _OBJECTS_AT_ONCE), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _select_functions(functions: Sequence[AnyFunction], names: Sequence[str]) -> Sequence[AnyFunction]:
    """Return the functions of these names, or all without names. Raises RejectedError UNKNOWN_FUNCTION."""
    known_names = [function.name for function in functions]
    for name in names:
        if name not in known_names:
            raise RejectedError(
                "UNKNOWN_FUNCTION", f"these modules have no function {name}; they have {', '.join(known_names)}"
            )
    return [function for function in functions if not names or function.name in names]


def _examples_in(texts: tuple[str, ...]) -> tuple[int | None, dict[str, Sequence[Any]]]:
    """Return the number of inputs, if one is among the texts, and the values of arguments by name."""
    numbers = [text for text in texts if "=" not in text]
    values = literals_in(tuple(text for text in texts if "=" in text), "--examples")
    for number in numbers:
        if not number.isdecimal() or int(number) < 1:
            raise click.BadParameter(f"{number!r} is no number of inputs, nor NAME=VALUES", param_hint="--examples")
    for name, each in values.items():
        if not isinstance(each, list):
            raise click.BadParameter(
                f"the values of {name} are {each!r}; write a list, as in \"{name}=['EUR', 'USD']\"",
                param_hint="--examples",
            )
    return int(numbers[-1]) if numbers else None, values


def _results(
    function: AnyFunction,
    literals: dict[str, Any],
    examples: int | None,
    values: Mapping[str, Sequence[Any]],
    progress: Progress,
) -> list[LawResult]:
    """Check the laws of a function, with a progress bar."""
    from foldflight.testing.laws import EXAMPLES, LAWS, iterate_laws
    from foldflight.testing.scalarlaws import SCALAR_LAWS

    laws = SCALAR_LAWS if isinstance(function, ScalarFunction) else LAWS
    bar = progress.add_task(function.name, total=len(laws))
    try:
        results = []
        for result in iterate_laws(function, literals=literals, examples=examples or EXAMPLES, values=values):
            results.append(result)
            progress.advance(bar)
        return results
    finally:
        progress.remove_task(bar)


def laws_table(title: str, results: list[LawResult]) -> Table:
    """Return the outcome of each law as a table for people: broken laws first, and each error once."""
    first_laws: dict[str, str] = {}
    table = Table("law", "", Column("detail", overflow="fold"), title=Text(title), title_justify="left")
    for result in sorted(results, key=lambda result: result.passed is not False):
        word, style = _OUTCOMES[result.passed]
        first = first_laws.setdefault(result.cause, result.law) if result.cause else result.law
        detail = result.detail if first == result.law else f"the same error as in: {first}"
        table.add_row(result.law, Text(word, style=style), Text(detail))
    return table


def literals_in(literals: tuple[str, ...], option: str = "--set") -> dict[str, Any]:
    """Return the values in texts of the form NAME=VALUE, which an option has."""
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
                param_hint=option,
            ) from None
    return values


def _arguments_of(function: AnyFunction, values: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {parameter.name: parameter for parameter in function.parameters}
    missing_names = [name for name, parameter in parameters.items() if parameter.required and name not in values]
    if missing_names:
        raise RejectedError(
            "SIGNATURE",
            f"{function.signature} needs the direct argument {missing_names[0]!r}; "
            f"give it with --set {missing_names[0]}=...",
            function=function.name,
        )
    return {name: value for name, value in values.items() if name in parameters}
