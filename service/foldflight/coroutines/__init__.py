"""The event loop of a process, in which authors' coroutines run within the bounds of their functions."""

from foldflight.coroutines.eventloop import PROCESS_LOOP, EventLoop
from foldflight.coroutines.queues import Report

__all__ = ["PROCESS_LOOP", "EventLoop", "Report"]
