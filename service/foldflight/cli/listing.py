"""`foldflight functions`: what a server, or a module, offers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from foldflight.client import connect
from foldflight.exchange.frames import FunctionInfo

__all__ = ["functions"]


@click.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.option("--token", envvar="FOLDFLIGHT_TOKEN", help="Bearer token of the server.  [FOLDFLIGHT_TOKEN]")
@click.option("--deadline-s", type=float, default=10.0, show_default=True, help="Longest wait for the server.")
def functions(target: str, *, as_json: bool, token: str | None, deadline_s: float) -> None:
    """List the functions of TARGET: grpc://host:port, or embedded:module."""
    infos = sorted(connect(target, token=token, deadline_s=deadline_s).infos(), key=lambda info: info.name)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(info) for info in infos], indent=2, default=repr))
    else:
        Console().print(functions_table(infos))


def functions_table(infos: Sequence[FunctionInfo]) -> Table:
    """Return a table of functions for people; retract "any order" also takes back a row that has not come yet."""
    table = Table(Column("function", ratio=1), "version", "retract", "merge", "state", show_lines=True)
    for info in infos:
        # As Text: in a plain string rich would take the brackets of a signature for markup.
        about = Text.assemble((info.signature, "bold"), "\n", (info.doc.strip().partition("\n")[0], "dim"))
        retract = "any order" if info.invertible else _yes(info.retract)
        table.add_row(about, info.version, retract, _yes(info.merge), info.codec)
    return table


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
