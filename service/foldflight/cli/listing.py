"""`foldflight functions`: what a server, or a module, offers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from foldflight.cli.target import target_options
from foldflight.client import connect
from foldflight.client.connect import EMBEDDED
from foldflight.client.embedded import EmbeddedTransport
from foldflight.exchange.frames import FunctionInfo

__all__ = ["functions"]


@click.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@target_options
def functions(target: str, *, as_json: bool, **connection: Any) -> None:
    """List the functions of TARGET: grpc://host:port, grpc+tls://host:port, or a module (also embedded:module)."""
    reached = connect(target if ":" in target else f"{EMBEDDED}{target}", **connection)
    transport = reached.transport
    found = transport.infos(look=True) if isinstance(transport, EmbeddedTransport) else reached.infos()
    infos = sorted(found, key=lambda info: info.name)
    if as_json:
        click.echo(json.dumps([_facts(info) for info in infos], indent=2, default=repr))
    else:
        Console().print(functions_table(infos))


def functions_table(infos: Sequence[FunctionInfo]) -> Table:
    """Return a table of functions for people; retract "any order" also takes back a row that has not come yet."""
    table = Table(Column("function", ratio=1), "version", "retract", "merge", "state", "fold", show_lines=True)
    for info in infos:
        # As Text: in a plain string rich would take the brackets of a signature for markup.
        about = Text.assemble((info.signature, "bold"), "\n", (info.doc.strip().partition("\n")[0], "dim"))
        mode = "" if info.folding is None else info.folding.mode
        if info.folding is not None and info.folding.reason:
            about.append(f"\n{mode} because: {info.folding.reason}", "yellow")
        retract = "any order" if info.invertible else _yes(info.retract)
        table.add_row(about, info.version, retract, _yes(info.merge), info.codec, mode)
    return table


def _facts(info: FunctionInfo) -> dict[str, Any]:
    facts = dataclasses.asdict(info)
    del facts["folding"]
    return {**facts, "folded": info.folded}


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
