"""The conformance kit tests servers: ours keeps every rule, and each mistake is detected by its rule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from foldflight import udaf
from foldflight.errors import RejectedError, RetryableError
from foldflight.functions import builtin
from foldflight.server.run.lifecycle import ProcessServer, serving
from foldflight.testing.conformance import SERVER_RULES, Outcome, check_server
from tests.wire.conformance_mutants import MUTANTS, bound_as, each, places_are_never_free_again
from tests.wire.kit import DEADLINE_S, eventually

TOKEN = "a token for the conformance kit"
# So small that results in parts, and messages that are too large, are cheap to try.
SETTINGS = {"tokens": TOKEN, "message_bytes_max": 128 * 1024}
Mutate = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def numeric_server() -> Iterator[ProcessServer]:
    """A server whose limits allow every rule to be tested."""
    with serving(builtin, **SETTINGS) as server:
        yield server


def outcomes(server: ProcessServer, *rules: str, deadline_s: float = 10.0, **more: str) -> dict[str, Outcome]:
    """Test rules: all, unless some are given."""
    result = check_server(server.url, token=TOKEN, only=frozenset(rules), deadline_s=deadline_s, **more)
    return {outcome.rule.name: outcome for outcome in result}


@pytest.mark.every_turn
def test_a_server_keeps_the_contract(numeric_server: ProcessServer) -> None:
    """Every rule is tested and kept."""
    result = outcomes(numeric_server, deadline_s=DEADLINE_S)
    assert list(result) == [rule.name for rule in SERVER_RULES]
    assert {name: outcome.detail for name, outcome in result.items() if not outcome.passed} == {}


@pytest.mark.parametrize(("mutate", "broken_rules"), MUTANTS)
def test_a_mistake_is_found(
    numeric_server: ProcessServer,
    monkeypatch: pytest.MonkeyPatch,
    deadlines: Callable[[], set[threading.Thread]],
    mutate: Mutate,
    broken_rules: tuple[str, ...],
) -> None:
    """The rule of a mistake is broken, with what was found, and leaves no exchange open."""
    mutate(monkeypatch)
    outcome = outcomes(numeric_server, broken_rules[0], deadline_s=1.0)[broken_rules[0]]
    assert outcome.passed is False
    assert outcome.detail
    assert eventually(lambda: not deadlines()), "the kit left an exchange open"


@pytest.mark.slow
@pytest.mark.parametrize(("mutate", "broken_rules"), MUTANTS)
def test_a_mistake_breaks_no_other_rule(
    numeric_server: ProcessServer, monkeypatch: pytest.MonkeyPatch, mutate: Mutate, broken_rules: tuple[str, ...]
) -> None:
    """Each mistake breaks only its own rules."""
    mutate(monkeypatch)
    result = outcomes(numeric_server, deadline_s=15.0)  # a rule that holds needs longer on a busy machine
    assert {name for name, outcome in result.items() if outcome.passed is False} == set(broken_rules)


def test_places_that_are_never_free_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not free cancelled exchanges reaches exchanges_max."""
    with serving(builtin, exchanges_max=9, **SETTINGS) as full:
        places_are_never_free_again(monkeypatch)
        outcome = outcomes(full, "hanging-up", deadline_s=1.0)["hanging-up"]
    assert outcome.passed is False
    assert "still count towards exchanges_max" in outcome.detail


def test_every_rule_has_a_mistake_that_breaks_it() -> None:
    """Each rule can be broken."""
    covered_rules = {mutant.values[1][0] for mutant in MUTANTS} | {"hanging-up"}
    assert covered_rules == {rule.name for rule in SERVER_RULES}


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class OneWaySum:
    """A sum without retract and merge, which never fails."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, total: list[int], value: int) -> None:
        total[0] = (total[0] + value) % 1000

    def get_value(self, total: list[int]) -> int:
        return total[0]


@pytest.mark.every_turn
def test_operations_that_a_function_lacks_are_not_tried() -> None:
    """If the function cannot retract, merge or fail, the rules test the refusals instead."""
    with serving(OneWaySum, **SETTINGS) as server:
        result = outcomes(server, function="one_way_sum")
    assert {name for name, outcome in result.items() if outcome.passed is None} == {
        "isolated-errors",
        "function-errors",
        "retract-from-states",
    }
    assert {name: outcome.detail for name, outcome in result.items() if outcome.passed is False} == {}


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Digits:
    """The values as the digits of one number, in the order in which they come."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, number: list[int], value: int) -> None:
        number[0] = 10 * number[0] + value

    def get_value(self, number: list[int]) -> int:
        return number[0]


def test_the_order_of_rows_is_seen_in_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a function whose output depends on the order, a server that sorts the other way breaks the rule."""
    with serving(Digits, **SETTINGS) as server:
        assert outcomes(server, "order", function="digits")["order"].passed is True
        bound_as(each(order=lambda call: tuple(replace(key, descending=not key.descending) for key in call.order)))(
            monkeypatch
        )
        outcome = outcomes(server, "order", function="digits")["order"]
    assert outcome.passed is False
    assert "the output of 7 and 5, in descending order" in outcome.detail


def test_a_function_that_tells_no_rows_apart_is_refused(numeric_server: ProcessServer) -> None:
    """With `count`, no rule could fail."""
    with pytest.raises(RejectedError, match="with different outputs") as excinfo:
        outcomes(numeric_server, function="count")
    assert excinfo.value.code == "SIGNATURE"


def test_a_server_that_cannot_be_asked_is_an_error(numeric_server: ProcessServer) -> None:
    """An unknown rule or function, a missing token and a missing server are errors, not broken rules."""
    with pytest.raises(RejectedError, match="no rule kind-of") as excinfo:
        outcomes(numeric_server, "kind-of")
    assert excinfo.value.code == "SIGNATURE"
    with pytest.raises(RejectedError) as excinfo:
        outcomes(numeric_server, function="sums")
    assert excinfo.value.code == "UNKNOWN_FUNCTION"
    with pytest.raises(RejectedError) as excinfo:
        list(check_server(numeric_server.url, deadline_s=1.0))
    assert excinfo.value.code == "UNAUTHENTICATED"
    with pytest.raises(RetryableError) as retryable_error:
        list(check_server("grpc://127.0.0.1:1", deadline_s=1.0))
    assert retryable_error.value.code == "UNREACHABLE"
