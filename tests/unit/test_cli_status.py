"""The output of `foldflight status`: rates, unreachable servers, differences."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from foldflight.cli.fleet_status import _watch, rates, status, status_view
from foldflight.errors import RejectedError, RetryableError
from foldflight.server.run.settings import SETTINGS


def server(name, rows, *, state="ready", functions=None, errors=None, version="1.0", **more):
    return {
        "server_id": name,
        "state": state,
        "version": version,
        "up_s": 7500,
        "workers": 1,
        "exchanges": {"open": 2, "max": 64},
        "rows": rows,
        "groups": 10,
        "state_bytes": 3_000_000,
        "errors": errors or {},
        **more,
        "functions": {"count": "1"} if functions is None else functions,
    }


def render(servers, width=140):
    output = io.StringIO()
    console = Console(file=output, width=width)
    console.print(status_view(servers, wide=width >= 110))
    return output.getvalue()


def test_a_rate_is_the_difference_over_the_time_between():
    """1,000 rows in two seconds are 500 rows per second, for each server by its own answers."""
    before = [(10.0, {"servers": [server("a", 1000)]}), (20.0, {"servers": [server("b", 5)]})]
    after = [(12.0, {"servers": [server("a", 2000)]}), (24.0, {"servers": [server("b", 5)]})]
    assert [each["rows_per_s"] for each in rates(before, after)] == [500.0, 0.0]


def test_a_server_that_is_new_or_began_again_has_no_rate_yet():
    """Without an earlier answer there is no rate."""
    before = [(10.0, {"servers": [server("a", 1000)]})]
    after = [(12.0, {"servers": [server("a", 3), server("b", 9)]})]
    assert [each["rows_per_s"] for each in rates(before, after)] == [None, None]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_url_of_the_status_page_tells_the_port_of_flight(scheme):
    """Whoever has seen the page in a browser tries its URL first."""
    with pytest.raises(RejectedError, match=r"http_port, 8817 by default.*--port or FOLDFLIGHT_PORT, 8815 by default"):
        status.main([f"{scheme}://127.0.0.1:8817"], standalone_mode=False)
    with pytest.raises(RejectedError) as excinfo:
        status.main(["127.0.0.1:8817"], standalone_mode=False)
    assert "8815" not in excinfo.value.message
    assert (SETTINGS["http_port"].default, SETTINGS["port"].default) == (8817, 8815)


def test_a_server_is_shown_once():
    """A server that two URLs show is listed once."""
    answer = {"servers": [server("a", 1), server("b", 1)]}
    assert len(rates([(1.0, answer), (1.0, answer)], [(2.0, answer), (2.0, answer)])) == 2


def test_a_server_that_does_not_answer_is_shown_with_the_reason():
    """A server that does not answer has a line with its address."""
    problem = "UNREACHABLE: not reachable, and gRPC has a lot to say about it"
    text = render(rates([], [(1.0, {"servers": [{"address": "10.0.0.1:8817", "problem": problem}]})]), 80)
    assert "10.0.0.1:8817   no answer" in text
    assert f"10.0.0.1:8817: {problem}" in text


def test_differences_between_servers_are_named():
    """Different versions of a function, or of foldflight, are listed with their servers."""
    servers = [server("a", 1, functions={"f": "1", "g": "1"}), server("b", 1, functions={"f": "2", "g": "1"})]
    text = render(rates([], [(1.0, {"servers": servers})]))
    assert "f differs: 1 on a; 2 on b" in text
    assert "functions, the same everywhere: g 1" in text
    mixed_servers = [server("a", 1), server("b", 1, version="1.1")]
    assert "foldflight differs: 1.0 on a; 1.1 on b" in render(rates([], [(1.0, {"servers": mixed_servers})]))


def test_the_table_fits_into_eighty_characters():
    """A narrow terminal shows fewer columns, and does not cut them."""
    name = "f" * 12 + "-1-abcd"
    servers = rates([], [(1.0, {"servers": [server(name, 123_456_789, state="draining")]})])
    lines = render(servers, 80).splitlines()
    assert any(name in line and "123,456,789" in line and "draining" in line for line in lines)
    assert "states" not in render(servers, 80)
    assert "3 MiB" in render(servers, 140)


def test_errors_by_function_and_memory_are_shown():
    """Errors are summed by function over all servers; a server that does not report its memory is not an error."""
    memory = {"bytes": 3 * 2**30, "largest_bytes": 2**30, "limit_bytes": 2**31}
    servers = [
        server("a", 1, memory=memory, function_errors={"f": {"USER_CODE": 2}}, groups_isolated={"f": 1000}),
        server("b", 1, memory={**memory, "limit_bytes": 0}, function_errors={"f": {"USER_CODE": 3, "OVERFLOW": 1}}),
        server("c", 1),
    ]
    text = render(rates([], [(1.0, {"servers": servers})]))
    assert "f raised: USER_CODE 5, groups isolated 1,000, OVERFLOW 1" in text
    assert "3 GiB/2 GiB" in text
    assert text.count("3 GiB ") == 1


class Reader:
    """Returns answers one after the other, and raises exceptions among them."""

    urls = ("grpc://somewhere",)

    def __init__(self, *answers):
        self.answers = list(answers)

    def status(self):
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_watching_goes_on_until_it_is_interrupted(capsys):
    """A server that does not answer for a while is a line of the table; only Ctrl-C ends the command."""
    away = RetryableError("UNREACHABLE", "nobody there")
    back = {"servers": [server("a", 7_777)]}
    _watch([Reader({"servers": [server("a", 1)]}, away, back, KeyboardInterrupt())], interval_s=0)
    output = capsys.readouterr().out
    assert "7,777" in output


def test_the_rates_of_calls_are_summed_over_the_servers():
    """Each server may make the calls that its functions declare, so replicas multiply them."""
    servers = [server(name, 1, call_rates={"asking": 2.5}, rows_per_s=None) for name in ("a", "b")]
    assert "asking may make 5 calls/s on all servers together" in render(servers)
