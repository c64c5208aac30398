"""`foldflight conform`: test a server or an engine against the rules of the wire contract."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from foldflight.cli.terminal import target_options
from foldflight.client.connect import credentials, server_url

if TYPE_CHECKING:
    from foldflight.ext.conformance import Outcome


EXIT_BROKEN = 1
_URL = "{url}"
_VARIABLE = "FOLDFLIGHT_URL"
_WORDS = {True: "[green]kept[/green]", False: "[bold red]BROKEN[/bold red]", None: "[dim]not tested[/dim]"}
_STDERR_CHARS = 2000


@click.group()
def conform() -> None:
    """Test a server or an engine against the wire contract.

    The contract is proto/README.md and the comments of proto/foldflight/v1/exchange.proto.
    """


@conform.command()
@click.argument("url")
@click.option("--function", default="sum", show_default=True, help="A function with one BIGINT argument for the tests.")
@click.option("--rule", "rules", multiple=True, metavar="NAME", help="Test this rule only. Repeat it for several.")
@target_options
def server(url: str, *, function: str, rules: tuple[str, ...], deadline_s: float, **connection: Any) -> None:
    """Test the server at URL against the rules for servers. Exits with 1 if one is broken.

    Example: foldflight conform server grpc://127.0.0.1:8815

    The function must return different values for different rows, as a sum does. Rules that need more (to retract, to
    merge, to fail) are not tested if the function cannot do it.
    """
    from foldflight.ext.conformance import check_server

    url = server_url(url)
    arguments = credentials((url,), **connection)
    _report(check_server(url, function=function, only=frozenset(rules), deadline_s=deadline_s, **arguments))


@conform.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--module", "modules", multiple=True, metavar="MODULE", help="Functions to serve in addition to the built-in ones."
)
@click.option("--timeout-s", type=float, default=120.0, show_default=True, help="Longest time for one run.")
@click.option(
    "--silence-s",
    type=float,
    default=60.0,
    show_default=True,
    help="How long a silent server does not answer. It must exceed the engine's own deadline.",
)
def engine(command: tuple[str, ...], *, modules: tuple[str, ...], timeout_s: float, silence_s: float) -> None:
    """Test COMMAND, which runs one query with an engine, against the rules for engines. Exits with 1 if one is broken.

    Example: foldflight conform engine -- python my_query.py {url}

    COMMAND is run several times, each time with a new server on this machine that injects one kind of fault. In
    COMMAND, {url} is replaced by the URL of the server, which is also in the variable FOLDFLIGHT_URL. COMMAND prints
    the answer of the query to its standard output, in a fixed order. If the query fails, it exits with a code other
    than 0. Put -- before COMMAND.
    """
    from foldflight.ext.conformance import check_engine

    def query(url: str) -> object:
        return _run([word.replace(_URL, url) for word in command], url, timeout_s)

    _report(check_engine(query, modules, timeout_s=timeout_s, silence_s=silence_s))


@conform.command()
def rules() -> None:
    """Print the rules for servers and the rules for engines as Markdown tables.

    Example: foldflight conform rules
    """
    from foldflight.ext.conformance import ENGINE_RULES, SERVER_RULES, rules_table

    click.echo(rules_table("servers", SERVER_RULES))
    click.echo(rules_table("engines", ENGINE_RULES), nl=False)


def _run(command: Sequence[str], url: str, timeout_s: float) -> str:
    process = subprocess.run(  # noqa: S603  (the user's own command)
        command, capture_output=True, text=True, check=False, timeout=timeout_s, env={**os.environ, _VARIABLE: url}
    )
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {process.stderr.strip()[-_STDERR_CHARS:]}")
    return process.stdout


def _report(outcomes: Iterable[Outcome]) -> None:
    """Print each outcome when it is known; for a broken rule, also what was found and what to change."""
    console = Console()
    outcomes_of_rules = []
    for outcome in outcomes:
        outcomes_of_rules.append(outcome.passed)
        detail = f"  {escape(outcome.detail)}" if outcome.passed is None else ""
        console.print(f"{_WORDS[outcome.passed]}  {outcome.rule.name}{detail}", highlight=False)
        if outcome.passed is False:
            for name, text in (
                ("rule", outcome.rule.sentence),
                ("found", outcome.detail),
                ("remedy", outcome.rule.remedy),
            ):
                console.print(f"    {name}: {escape(text)}", highlight=False)
    broken_count, skipped_count = outcomes_of_rules.count(False), outcomes_of_rules.count(None)
    console.print(
        f"{len(outcomes_of_rules)} rules: {outcomes_of_rules.count(True)} kept, "
        f"{broken_count} broken, {skipped_count} not tested",
        highlight=False,
    )
    if broken_count:
        click.get_current_context().exit(EXIT_BROKEN)
