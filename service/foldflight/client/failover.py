"""Failover with real connections and a real clock: carry out the instructions of the coordinator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from foldflight.client.connection import Connection
from foldflight.client.exchange import OpenExchange, closed_error
from foldflight.client.logs import log_event, set_up
from foldflight.client.patience import Clock
from foldflight.errors import FoldflightError
from foldflight.exchange.failover.coordinator import Coordinator
from foldflight.exchange.failover.steps import (
    CutConnection,
    Deliver,
    GiveUp,
    Instruction,
    LeaveConnection,
    LogEvent,
    OpenConnection,
    Rest,
    SendFrame,
    Waiting,
)
from foldflight.exchange.frames import EngineFrame, Open

_LOGGER = "foldflight.client"


_told: Final[set[str]] = set()
_TOLD_MAX: Final = 1000


def _is_told(event: LogEvent) -> bool:
    """Return whether an event has been logged in this process, and note it. A stream opens exchanges for ever."""
    key = repr(event)
    if key in _told:
        return True
    if len(_told) < _TOLD_MAX:
        _told.add(key)
    return False


class SurvivingExchange(OpenExchange):
    """An exchange that moves from server to server.

    Args:
        opening: The Open frame of the exchange.
        coordinator: Makes all decisions.
        dial: Opens a connection to one server.
        clock: Tells the time, and sleeps.

    Raises:
        FoldflightError: The coordinator gave up.
    """

    def __init__(
        self, opening: Open, coordinator: Coordinator, dial: Callable[[str, Open], Connection], clock: Clock
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
        """Send the frame of an operation. Answers to earlier ones may arrive meanwhile."""
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
                # Only the last instruction can wait, and so lead to others.
                for instruction in instructions:
                    if isinstance(instruction, Waiting):
                        instructions = self._wait(instruction)
                    else:
                        instructions = []
                        self._execute(instruction)
        except BaseException:
            self.cut()
            raise

    def _execute(self, instruction: Deliver | CutConnection | LeaveConnection | LogEvent | GiveUp) -> None:
        """Carry out an instruction that does not wait."""
        match instruction:
            case Deliver():
                self._logs += instruction.logs
                if instruction.answer is not None:
                    self._arrived.append((instruction.frame, instruction.answer))
            case CutConnection():
                self._leave(is_cut=True)
            case LeaveConnection():
                self._leave(is_cut=False)
            case LogEvent():
                if not (instruction.once and _is_told(instruction)):
                    log_event(set_up(_LOGGER, logging.WARNING), logging.WARNING, instruction.event, instruction.fields)
            case GiveUp():
                raise instruction.error

    def _wait(self, instruction: Waiting) -> list[Instruction]:
        """Carry out an instruction that waits, report how it ended, and return the instructions that follow."""
        if isinstance(instruction, Rest):
            self._clock.rest_until(instruction.until_s)
            return self.coordinator.rested()
        connection, answer = self._connection, None
        try:
            if isinstance(instruction, OpenConnection):
                connection = self._connection = self._dial(instruction.url, instruction.opening)
            elif connection is None:
                raise AssertionError("the coordinator returned an instruction for a connection, and there is none")
            elif isinstance(instruction, SendFrame):
                connection.send(instruction.frame)
            else:
                answer = connection.answer()
        except FoldflightError as error:
            if connection is not None and connection.unresolved is not None:
                raise
            return self.coordinator.lost(error)
        if isinstance(instruction, SendFrame):
            return self.coordinator.sent()
        if answer is not None:
            return self.coordinator.answered(answer, connection.take_logs(), reopen=connection.reopen)
        self.opened = connection.opened
        return self.coordinator.accepted(connection.opened)
