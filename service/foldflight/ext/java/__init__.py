"""Aggregate functions in Java: a public class of a jar becomes a `Function`, read by reflection through JPype.

Calling its methods row by row is the meaning (`classes.py`). `bridge.py` folds whole chunks with `Loops.java`, a small
class of ours, with the same answers; without its compiled form everything is called row by row. JPype is imported when
the first Java function is loaded, and the virtual machine of a process starts then (`jvm.py`).
"""

from foldflight.ext.java import classes
from foldflight.functions.registry import JavaReader


def provide() -> JavaReader:
    """Return what reads jars."""
    return classes
