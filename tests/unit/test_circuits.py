"""The choice of the next server."""

from foldflight.exchange.failover.coordinator import Circuits

URLS = ("a", "b", "c")


def test_servers_take_turns() -> None:
    """Each server is chosen equally often."""
    circuits = Circuits(lambda: 0.5, first_turn=1)
    assert [circuits.choose(URLS, 0.0) for _ in range(4)] == ["b", "c", "a", "b"]


def test_the_rotation_begins_where_it_is_told() -> None:
    """A task continues the rotation at its number."""
    circuits = Circuits(lambda: 0.5, first_turn=1)
    circuits.begin(5)
    assert [circuits.choose(URLS, 0.0) for _ in range(2)] == ["c", "a"]


def test_a_server_that_failed_rests() -> None:
    """A server that failed is avoided for a while, and comes last in `turn`."""
    circuits = Circuits(lambda: 0.5)
    circuits.record_failure("a", 0.0)
    assert [circuits.turn(URLS, 0.0)[-1] for _ in range(3)] == ["a"] * 3
    assert {circuits.choose(URLS, 0.05) for _ in range(6)} == {"b", "c"}
    assert circuits.choose(("a",), 0.05) is None
    assert circuits.available_at_s(("a",)) == 0.1


def test_one_tries_while_others_wait() -> None:
    """After that time one exchange tries the server, and others avoid it until the result is known."""
    circuits = Circuits(lambda: 0.5)
    circuits.record_failure("a", 0.0)
    assert circuits.choose(("a",), 0.2) == "a"
    assert circuits.choose(("a",), 0.2) is None
    circuits.record_success("a")
    assert circuits.choose(("a",), 0.2) == "a"
    assert circuits.choose(("a",), 0.2) == "a"


def test_a_loss_of_many_exchanges_counts_once() -> None:
    """Several exchanges that lose a server at once do not prolong its time; a failed attempt does."""
    circuits = Circuits(lambda: 0.5)
    for _ in range(20):
        circuits.record_failure("a", 0.0)
    assert circuits.available_at_s(("a",)) == 0.1
    assert circuits.choose(("a",), 1.0) == "a"
    circuits.record_failure("a", 1.0)
    assert circuits.available_at_s(("a",)) == 1.2
    for _ in range(20):
        now_s = circuits.available_at_s(("a",))
        assert circuits.choose(("a",), now_s) == "a"
        circuits.record_failure("a", now_s)
    assert circuits.available_at_s(("a",)) == now_s + 5.0
