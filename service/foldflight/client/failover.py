"""Failover with real links and a real clock: carry out the instructions of the coordinator."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from foldflight.client.exchange import OpenExchange, closed_error
from foldflight.client.logs import log_event, set_up
from foldflight.errors import FoldflightError
from foldflight.exchange.failover.steps import (
    AwaitAnswer,
    CutLink,
    Deliver,
    GiveUp,
    Instruction,
    LeaveLink,
    LogEvent,
    OpenLink,
    Rest,
    SendFrame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from foldflight.client.link import Link
    from foldflight.exchange.failover.coordinator import Coordinator
    from foldflight.exchange.frames import EngineFrame, Open

__all__ = ["Clock", "SurvivingExchange"]

_LOGGER = "foldflight.client"


class Clock(Protocol):
    """A monotonic clock."""

    def now_s(self) -> float:
        """Return the current time, in seconds."""

    def rest_until(self, until_s: float) -> None:
        """Sleep until this time."""


class SurvivingExchange(OpenExchange):
    """An exchange that moves from server to server.

    Args:
        opening: The Open frame of the exchange.
        coordinator: Makes all decisions.
        dial: Opens a link to one server.
        clock: Tells the time, and sleeps.

    Raises:
        FoldflightError: The coordinator gave up.
    """

    def __init__(
        self, opening: Open, coordinator: Coordinator, dial: Callable[[str, Open], Link], clock: Clock
    ) -> None:
        super().__init__(opening)
        self.coordinator = coordinator
        self._dial = dial
        self._clock = clock
        self._process(coordinator.started)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many frames are kept for another server that a checkpoint should replace them."""
        return self.coordinator.wants_checkpoint

    def send(self, frame: EngineFrame) -> None:
        """Send the frame of a verb. Answers to earlier ones may arrive meanwhile."""
        self._process(self.coordinator.given, frame)

    def _await_answer(self) -> bool:
        """Wait until another answer has arrived. Return False if none is due."""
        is_due = self.coordinator.is_due
        if is_due or self.is_over:
            self._process(self.coordinator.wanted)
        return is_due

    def _process(self, report: Callable[..., list[Instruction]], *about: Any) -> None:
        """Report to the coordinator, and carry out its instructions until there are no more."""
        if self.is_over:
            raise closed_error()
        try:
            instructions = report(*about)
            while instructions:
                # Only the last instruction can wait for a server, and so lead to others.
                for instruction in instructions:
                    instructions = self._execute(instruction)
        except BaseException:
            self.cut()
            raise

    def _execute(self, instruction: Instruction) -> list[Instruction]:
        """Carry out an instruction, and return those that follow."""
        match instruction:
            case SendFrame() | AwaitAnswer() | OpenLink():
                return self._use_link(instruction)
            case Deliver():
                self._logs += instruction.logs
                if instruction.answer is not None:
                    self._arrived.append((instruction.frame, instruction.answer))
            case Rest():
                self._clock.rest_until(instruction.until_s)
                return self.coordinator.rested()
            case CutLink():
                link, self._link = self._link, None
                if link is not None:
                    link.cut()
            case LeaveLink():
                link, self._link = self._link, None
                if link is not None:
                    link.close()
            case LogEvent():
                log_event(set_up(_LOGGER, logging.WARNING), logging.WARNING, instruction.event, instruction.fields)
            case GiveUp():
                raise instruction.error
        return []

    def _use_link(self, instruction: SendFrame | AwaitAnswer | OpenLink) -> list[Instruction]:
        """Carry out an instruction that waits for a server, and report its end."""
        link, answer = self._link, None
        try:
            if isinstance(instruction, OpenLink):
                link = self._link = self._dial(instruction.url, instruction.opening)
            elif link is None:
                raise AssertionError("the coordinator returned an instruction for a link, and there is none")
            elif isinstance(instruction, SendFrame):
                link.send(instruction.frame)
            else:
                answer = link.answer()
        except FoldflightError as error:
            if link is not None and link.unresolved is not None:
                raise
            return self.coordinator.lost(error)
        if isinstance(instruction, SendFrame):
            return self.coordinator.sent()
        if answer is not None:
            return self.coordinator.answered(answer, link.take_logs(), reopen=link.reopen)
        self.opened = link.opened
        return self.coordinator.accepted(link.opened)
