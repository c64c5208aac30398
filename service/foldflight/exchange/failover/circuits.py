"""Circuit breakers: choose the server to try next.

A server that fails is skipped for a time that doubles with each failure and has jitter, so that not all exchanges of a
fleet return to it at once. After that time one exchange may try it while others still skip it. The first success
closes the circuit. Exchanges that lose a server at the same time count as one failure.

Source: M. Nygard, "Release It!" (2007), circuit breaker; M. Brooker, "Exponential backoff and jitter" (2015).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foldflight.errors import FoldflightError

_REST_S_MIN: Final = 0.1
_REST_S_MAX: Final = 5.0
_DOUBLINGS_MAX: Final = 10


def problem_of(errors: Mapping[str, FoldflightError]) -> str:
    """Describe the errors of servers: the first one in full, and the event of each other one."""
    (first, error), *others = errors.items()
    texts = [error.message if not others or first in error.message else f"{first}: {error.message}"]
    for url, other in others:
        happened = other.message.split("; ", 1)[0]  # without the remedy, which often is the same
        texts.append(happened if url in happened else f"{url}: {happened}")
    return "; ".join(texts)


@dataclass
class _Circuit:
    failures: int = 0
    rests_until_s: float = 0.0
    is_tried: bool = False


class Circuits:
    """The servers of a process, shared by its exchanges.

    Args:
        draw: Returns a random number in [0, 1).
        first_turn: Start of the rotation over servers. A different number in each process spreads the exchanges.
    """

    def __init__(self, draw: Callable[[], float], first_turn: int = 0) -> None:
        self._draw = draw
        self._turns = first_turn
        self._circuits: dict[str, _Circuit] = {}

    def begin(self, turn: int) -> None:
        """Continue the rotation over servers at this number."""
        self._turns = turn

    def turn(self, urls: Sequence[str], now_s: float) -> list[str]:
        """Return all servers in round-robin order; resting servers come last."""
        first = self._turns % len(urls)
        self._turns += 1
        return sorted([*urls[first:], *urls[:first]], key=lambda url: self._rests_until_s(url) > now_s)

    def choose(self, urls: Sequence[str], now_s: float) -> str | None:
        """Return the server to try; None if all servers rest."""
        for url in self.turn(urls, now_s):
            if self._rests_until_s(url) > now_s:
                continue
            circuit = self._circuits.get(url)
            if circuit is not None and circuit.failures:
                circuit.is_tried = True
                circuit.rests_until_s = now_s + self._rest_s(circuit)
            return url
        return None

    def available_at_s(self, urls: Collection[str]) -> float:
        """Return the earliest time at which one of these servers may be tried again, in seconds of the clock."""
        return min(self._rests_until_s(url) for url in urls)

    def record_failure(self, url: str, now_s: float) -> None:
        """Record that a server refused an exchange or was lost."""
        circuit = self._circuits.setdefault(url, _Circuit())
        if circuit.rests_until_s > now_s and not circuit.is_tried:
            return
        circuit.failures += 1
        circuit.is_tried = False
        circuit.rests_until_s = now_s + self._rest_s(circuit)

    def record_success(self, url: str) -> None:
        """Record a success of a server."""
        self._circuits.pop(url, None)

    def _rest_s(self, circuit: _Circuit) -> float:
        doublings = min(circuit.failures - 1, _DOUBLINGS_MAX)
        return min(_REST_S_MIN * 2.0**doublings, _REST_S_MAX) * (0.5 + self._draw())

    def _rests_until_s(self, url: str) -> float:
        circuit = self._circuits.get(url)
        return float("-inf") if circuit is None else circuit.rests_until_s
