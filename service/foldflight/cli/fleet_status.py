"""`foldflight status`: print the status of the servers of a fleet."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from foldflight.cli.terminal import target_options
from foldflight.client.connect import credentials, server_urls
from foldflight.client.flight_transport import FlightTransport
from foldflight.errors import FoldflightError

EXIT_NO_ANSWER = 1
_SAMPLE_S = 1.0
_NUMBERS = ("up", "workers", "open", "rows/s", "rows", "groups", "states", "memory")
_WIDE = {"workers", "groups", "states", "memory"}
_WIDE_CHARS = 110
_STYLES = {"ready": "green", "draining": "yellow"}

Servers = list[dict[str, Any]]
Answer = tuple[float, dict[str, Any]]
ServersByVersion = dict[str, dict[str, list[str]]]


@click.command()
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option("--watch", is_flag=True, help="Update the table until Ctrl-C.")
@click.option("--interval-s", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Interval of --watch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@target_options
def status(
    urls: tuple[str, ...], *, watch: bool, interval_s: float, as_json: bool, deadline_s: float, **connection: Any
) -> None:
    """Show the status of the servers at each URL. A URL may belong to a server or to a load balancer.

    Example: foldflight status grpc://127.0.0.1:8815 --watch

    Several URLs are separate arguments, or separated by commas as for `connect`.

    A server also shows the other servers of its fleet if its setting `peers` names them. Rates are computed from two
    answers, one second apart. The exit code is 1 if a URL or a server of the fleet does not answer.
    """
    transports = [
        FlightTransport([url], deadline_s=deadline_s, **credentials([url], **connection))
        for url in server_urls(",".join(urls))
    ]
    if watch:
        _watch(transports, interval_s)
        return
    before = _ask(transports)
    time.sleep(_SAMPLE_S)
    servers = rates(before, _ask(transports))
    if as_json:
        click.echo(json.dumps(servers, indent=2))
    else:
        console = Console()
        console.print(status_view(servers, wide=console.width >= _WIDE_CHARS))
    if any("problem" in server for server in servers):
        click.get_current_context().exit(EXIT_NO_ANSWER)


def _watch(transports: Sequence[FlightTransport], interval_s: float) -> None:
    before = _ask(transports)
    console = Console()
    with Live(Text("asking"), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval_s)
                after = _ask(transports)
                live.update(status_view(rates(before, after), wide=console.width >= _WIDE_CHARS), refresh=True)
                before = after
        except KeyboardInterrupt:
            return


def _ask(transports: Sequence[FlightTransport]) -> list[Answer]:
    answers: list[Answer] = []
    for transport in transports:
        try:
            status = transport.status()
        except FoldflightError as error:
            status = {"servers": [{"address": transport.urls[0], "problem": f"{error.code}: {error.message}"}]}
        answers.append((time.monotonic(), status))
    return answers


def merge_answers(answers: Sequence[Answer]) -> dict[str, tuple[float, dict[str, Any]]]:
    """Return one answer for each server, by name, with its time: the first if there are several."""
    servers: dict[str, tuple[float, dict[str, Any]]] = {}
    for at_s, answer in answers:
        for server in answer["servers"]:
            servers.setdefault(server.get("server_id") or server["address"], (at_s, server))
    return dict(sorted(servers.items()))


def rates(before: Sequence[Answer], after: Sequence[Answer]) -> Servers:
    """Return the servers of the later answers with `rows_per_s`, which is None if no earlier answer is comparable."""
    old, servers = merge_answers(before), []
    for name, (at_s, server) in merge_answers(after).items():
        with_rates = dict(server)
        if "problem" not in server:
            earlier_s, earlier = old.get(name, (at_s, server))
            # A server that has restarted with the same name counts from zero.
            comparable = at_s > earlier_s and server["rows"] >= earlier.get("rows", 0)
            with_rates["rows_per_s"] = (
                round((server["rows"] - earlier["rows"]) / (at_s - earlier_s), 1) if comparable else None
            )
        servers.append(with_rates)
    return servers


def status_view(servers: Servers, *, wide: bool = True) -> Group:
    """Return servers, functions and versions as tables. Without `wide` they fit into 80 characters."""
    names = [name for name in _NUMBERS if wide or name not in _WIDE]
    columns = [Column(name, justify="right", no_wrap=True) for name in names]
    table = Table(Column("server", no_wrap=True), "state", *columns, "errors", box=SIMPLE_HEAD, pad_edge=False)
    for server in servers:
        if "problem" in server:
            table.add_row(server["address"], Text("no answer", "red"), *[""] * len(names), Text("see below", "red"))
        else:
            cells = _numbers(server)
            errors = ", ".join(f"{code} {count:,}" for code, count in server["errors"].items())
            state = Text(server["state"], _STYLES.get(server["state"], "red"))
            display_cells = [cells[name] for name in names]
            table.add_row(server["server_id"], state, *display_cells, Text(errors or "-", "red" if errors else "dim"))
    silent = [Text(f"{each['address']}: {each['problem']}", "red") for each in servers if "problem" in each]
    answering_servers = [server for server in servers if "problem" not in server]
    versions = _servers_by_version(answering_servers, lambda server: {"foldflight": server["version"]})
    functions = _servers_by_version(answering_servers, lambda server: server["functions"])
    alike = [
        *_version_texts("version", versions, len(answering_servers)),
        *_version_texts("functions", functions, len(answering_servers)),
    ]
    code = _servers_by_version(answering_servers, lambda server: server.get("code_digests", {}))
    return Group(
        table,
        *silent,
        *_failing_lines(answering_servers),
        *alike,
        *_differing_lines(code),
        *_call_rates(answering_servers),
    )


def _failing_lines(servers: Servers) -> Iterator[Text]:
    """Yield the functions that have raised, with counts over all servers."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for server in servers:
        for function, codes in server.get("function_errors", {}).items():
            counts[function].update(codes)
        for function, groups in server.get("groups_isolated", {}).items():
            counts[function]["groups isolated"] += groups
    for function, codes in sorted(counts.items()):
        yield Text(f"{function} raised: {', '.join(f'{code} {count:,}' for code, count in codes.items())}", "red")


def _call_rates(servers: Servers) -> Iterator[Text]:
    """Yield the bounds of the calls of async functions, summed over all servers."""
    sums: Counter[str] = Counter()
    for server in servers:
        sums.update(server.get("call_rates", {}))
    for function, rate in sorted(sums.items()):
        yield Text(f"{function} may make {rate:g} calls/s on all servers together")


def _numbers(server: Mapping[str, Any]) -> dict[str, str]:
    exchanges, speed = server["exchanges"], server["rows_per_s"]
    return {
        "up": _duration(server["up_s"]),
        "workers": str(server["workers"]),
        "open": f"{exchanges['open']}/{exchanges['max']}",
        "rows/s": "-" if speed is None else f"{speed:,.0f}",
        "rows": f"{server['rows']:,}",
        "groups": f"{server['groups']:,}",
        "states": _size(server["state_bytes"]),
        "memory": _memory(server.get("memory"), server["workers"]),
    }


def _servers_by_version(
    servers: Servers, versions_of: Callable[[dict[str, Any]], Mapping[str, str]]
) -> ServersByVersion:
    """Return the names of the servers with each version, by function and version."""
    by_version: ServersByVersion = defaultdict(lambda: defaultdict(list))
    for server in servers:
        for name, version in versions_of(server).items():
            by_version[name][version].append(server["server_id"])
    return by_version


def _version_texts(what: str, by_version: ServersByVersion, servers: int) -> Iterator[Text]:
    """Yield texts on versions: equal ones, and different ones, which make jobs fail at random."""
    alike = {name: next(iter(by)) for name, by in by_version.items() if [len(ids) for ids in by.values()] == [servers]}
    if alike:
        names_text = ", ".join(f"{name} {version}" for name, version in sorted(alike.items()))
        yield Text.assemble((f"{what}, the same everywhere: ", "dim"), names_text)
    for name, by in sorted(by_version.items()):
        if name not in alike:
            where = "; ".join(f"{version} on {', '.join(sorted(ids))}" for version, ids in sorted(by.items()))
            yield Text(f"{name} differs: {where}", "red")


def _differing_lines(code: ServersByVersion) -> Iterator[Text]:
    """Yield the functions of which servers have different code. Older servers do not report their code."""
    for name, by in sorted(code.items()):
        if len(by) > 1:
            where = "; ".join(f"{digest} on {', '.join(sorted(ids))}" for digest, ids in sorted(by.items()))
            yield Text(f"{name} has different code: {where}", "red")


def _duration(seconds: float) -> str:
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def _memory(memory: Mapping[str, int] | None, workers: int) -> str:
    """Return the memory in use and the limit of all worker processes. Older servers do not report them."""
    if memory is None:
        return "-"
    limit = memory["limit_bytes"] * workers
    return _size(memory["bytes"]) + (f"/{_size(limit)}" if limit else "")


def _size(count: float) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.0f} {units[-1]}"
