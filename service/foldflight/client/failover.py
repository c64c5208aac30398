"""Failover with real links and a real clock: carry out the instructions of the coordinator."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from foldflight.client.exchange import OpenExchange
from foldflight.client.logs import log_event, set_up
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.failover.steps import (
    AnswerCame,
    AnswerWanted,
    AwaitAnswer,
    CutLink,
    Deliver,
    Event,
    FrameGiven,
    FrameSent,
    GiveUp,
    Instruction,
    LeaveLink,
    LinkLost,
    LinkOpened,
    LogEvent,
    OpenLink,
    Rest,
    Rested,
    SendFrame,
    Started,
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
        self._link: Link | None = None
        self._is_over = False
        self._process(Started())

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many frames are kept for another server that a checkpoint should replace them."""
        return self.coordinator.wants_checkpoint

    def _send(self, frame: EngineFrame) -> None:
        self._process(FrameGiven(frame))

    def _await_answer(self) -> None:
        self._process(AnswerWanted())

    def close(self) -> None:
        """End the exchange and release its resources. It is safe to call this twice and after an error."""
        self._is_over = True
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def cut(self) -> None:
        """End the exchange at once, even if answers are due."""
        self._is_over = True
        self._cut()

    def _process(self, event: Event) -> None:
        """Pass an event to the coordinator, and carry out its instructions until there are no more."""
        if self._is_over:
            raise RejectedError("BAD_FRAME", "the exchange is closed")
        following: Event | None = event
        try:
            while following is not None:
                instructions, following = self.coordinator.handle(following, self._clock.now_s()), None
                for instruction in instructions:
                    following = self._execute(instruction)
        except BaseException:
            self._is_over = True
            self._cut()
            raise

    def _execute(self, instruction: Instruction) -> Event | None:
        match instruction:
            case OpenLink() | SendFrame() | AwaitAnswer():
                try:
                    return self._step(instruction)
                except FoldflightError as error:
                    if self._link is not None and self._link.unresolved is not None:
                        raise
                    return LinkLost(error)
            case Rest():
                self._clock.rest_until(instruction.until_s)
                return Rested()
            case Deliver():
                self._logs.extend(instruction.logs)
                if instruction.answer is not None:
                    self._arrived(instruction.answer)
            case CutLink():
                self._cut()
            case LeaveLink():
                link, self._link = self._link, None
                if link is not None:
                    link.close()
            case LogEvent():
                log_event(set_up(_LOGGER, logging.WARNING), logging.WARNING, instruction.event, instruction.fields)
            case GiveUp():
                raise instruction.error
        return None

    def _step(self, instruction: OpenLink | SendFrame | AwaitAnswer) -> Event:
        if isinstance(instruction, OpenLink):
            self._link = self._dial(instruction.url, instruction.opening)
            self.opened = self._link.opened
            return LinkOpened(self.opened)
        link = self._link
        if link is None:
            raise AssertionError("the coordinator returned an instruction for a link, and there is none")
        if isinstance(instruction, SendFrame):
            link.send(instruction.frame)
            return FrameSent()
        answer = link.answer()
        return AnswerCame(answer, tuple(link.take_logs()), link.reopen)

    def _cut(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.cut()
