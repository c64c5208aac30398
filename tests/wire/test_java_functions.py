"""Functions in Java on servers: served from a jar, shipped in a signed bundle, and what their code may do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foldflight import FunctionError, RejectedError, RetryableError, connect
from foldflight.ext.java import jvm
from foldflight.functions.query.call import Call
from foldflight.server.run.lifecycle import load_registry, serving
from foldflight.server.run.settings import load_settings
from tests.java_classes import WEIGHTED_AVG, jar
from tests.wire.kit import ServerProcess, end_epoch, eventually, open_request, opened_apart, rows
from tests.wire.test_workers import page

Spawn = Callable[..., ServerProcess]
CALL = Call("weighted_avg", ("value", "weight"))
KEY = "a-bundle-key-of-some-length"
ENDS = """
package com.acme;
public class Ends {
  public static class State { public long count; }
  public State createAccumulator() { return new State(); }
  public void accumulate(State state, long value) {
    if (value == 13) { System.exit(7); }
    if (value == 14) {
      java.util.ArrayList all = new java.util.ArrayList();
      while (true) { all.add(new long[1 << 20]); }
    }
    state.count += value;
  }
  public long getValue(State state) { return state.count; }
}
"""


def test_a_class_of_the_classpath_is_served(tmp_path: Path) -> None:
    """`java_classpath` and `java` serve a class; an exception has its frames at the client."""
    failing_source = WEIGHTED_AVG.replace("acc.count += weight;", "acc.count += weight / (weight - 7 == 0 ? 0 : 1);", 1)
    archive = jar(tmp_path, failing_source)
    with serving(java="com.acme.WeightedAvg", java_classpath=str(archive)) as server:
        functions = connect(server.url)
        assert functions["weighted_avg"].info.signature == "weighted_avg(argument1 BIGINT, argument2 INT) -> BIGINT"
        with functions.transport.open(open_request(CALL)) as exchange:
            exchange.chunk(rows((0, 0, 10, 1), (0, 0, 20, 3), (1, 0, 5, 2)))
            assert end_epoch(exchange, 1).column("output_0").to_pylist() == [17, 5]
        with functions.transport.open(open_request(CALL)) as exchange:
            exchange.chunk(rows((0, 0, 10, 7)))
            with pytest.raises(FunctionError, match=r"java.lang.ArithmeticException: / by zero") as excinfo:
                end_epoch(exchange, 1)
        assert "at com.acme.WeightedAvg.accumulate(WeightedAvg.java:" in (excinfo.value.trace or "")
        threads = jvm.java().JClass("java.lang.Thread").activeCount
        before = threads()
        for _ in range(12):
            with functions.transport.open(open_request(CALL)) as exchange:
                exchange.chunk(rows((0, 0, 10, 1)))
                end_epoch(exchange, 1)
        assert eventually(lambda: threads() < before + 6)  # threads of exchanges that have ended are detached


def test_a_jar_is_shipped_in_a_signed_bundle(tmp_path: Path) -> None:
    """The jar travels in a bundle that the key signs; servers without the key refuse it, and never load it."""
    archive = jar(tmp_path, WEIGHTED_AVG)
    names = [f"{archive}::com.acme.WeightedAvg"]
    with serving(bundle_keys=KEY) as server:
        functions = connect(server.url, bundle_key=KEY, java=names)
        archive.unlink()
        with functions.transport.open(open_request(CALL)) as exchange:
            exchange.chunk(rows((0, 0, 10, 1), (0, 0, 20, 3)))
            result = end_epoch(exchange, 1)
        assert result.column("state_0").to_pylist() == [{"sum": 70, "count": 4}]
    jar(tmp_path / "again", WEIGHTED_AVG).rename(archive)
    with (
        serving(bundle_keys="another-key-of-the-server") as server,
        pytest.raises(RejectedError, match="not signed with a bundle key of this server"),
    ):
        connect(server.url, bundle_key=KEY, java=names)


def test_mistakes_end_the_start_of_a_server(tmp_path: Path) -> None:
    """A class that is not in the jar is an error before anything is served."""
    archive = jar(tmp_path, WEIGHTED_AVG)
    settings = load_settings({"java": "com.acme.Average", "java_classpath": str(archive)}, {})
    with pytest.raises(RejectedError, match=r"no Java class com.acme.Average in functions.jar"):
        load_registry(settings)


@pytest.mark.slow
def test_a_class_that_ends_the_process_ends_one_worker(spawn: Spawn, tmp_path: Path) -> None:
    """System.exit ends one worker, which is replaced; with a limited heap, OutOfMemoryError fails only its exchange."""
    archive = jar(tmp_path, ENDS)
    server = spawn(
        modules="", workers=2, java="com.acme.Ends", java_classpath=str(archive), memory_limit="1GiB", drain_s=0.2
    )
    call = Call("ends", ("value",))
    with opened_apart(server, open_request(call)) as greedy:
        greedy.chunk(rows((0, 0, 14)))
        with pytest.raises(FunctionError, match="OutOfMemoryError"):
            end_epoch(greedy, 1)
    with opened_apart(server, open_request(call)) as ends, opened_apart(server, open_request(call)) as other:
        ends.chunk(rows((0, 0, 13)))
        with pytest.raises(RetryableError):
            end_epoch(ends, 1)
        other.chunk(rows((0, 0, 5)))
        assert end_epoch(other, 1).column("output_0").to_pylist() == [5]
    assert eventually(lambda: '"exit_code": 7' in server.log.read_text())
    assert eventually(lambda: "foldflight_workers 2.0" in page(server.ready["http"], "/metrics")[1])
    with opened_apart(server, open_request(call)) as after:
        after.chunk(rows((0, 0, 6)))
        assert end_epoch(after, 1).column("output_0").to_pylist() == [6]
