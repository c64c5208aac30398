"""Recordings of exchanges: frames and answers in a file, in the encoding of the wire, and their replay."""

from foldflight.recording.plan import Recordings

__all__ = ["Recordings"]
