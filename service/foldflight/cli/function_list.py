"""`foldflight functions`: list the functions of a server or a module."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from foldflight.cli.target import target_options
from foldflight.client import connect
from foldflight.client.connect import EMBEDDED
from foldflight.exchange.frames import FunctionInfo
from foldflight.fold.mode import Mode
from foldflight.functions import Registry
from foldflight.functions.author.spec import FunctionKind
from foldflight.lift import unlifted_reason


@click.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@target_options
def functions(target: str, *, as_json: bool, **connection: Any) -> None:
    """List the functions of TARGET: grpc://host:port, grpc+tls://host:port, or a module (also embedded:module).

    Example: foldflight functions grpc://127.0.0.1:8815

    Nothing is compiled for it: `compiled when hot` is what the methods' code tells. What only the functions that they
    call, or the types of values, show is known here as soon as they have been compiled on this host, by `foldflight
    check`, `foldflight compile` or rows.
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
        how = f"{folding.mode}, but" if folding.mode is Mode.COMPILED else f"{folding.mode} because:"
        text.append(f"\n    {how} {folding.reason}", "yellow")
    if info.lift and (why := unlifted_reason(info.lift)):
        text.append(f"\n    not lifted because: {why}", "yellow")
    return text


def _is_built_in(info: FunctionInfo) -> bool:
    return info.name in Registry()


def _facts(info: FunctionInfo) -> dict[str, Any]:
    facts = dataclasses.asdict(info)
    del facts["folding"]
    return {**facts, "folded": info.folded}
