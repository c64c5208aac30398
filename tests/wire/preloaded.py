"""The imports of a forked server: the package, functions of the wire tests, and the compiler."""

from __future__ import annotations

from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.store import LoopStore
from foldflight.functions.registry import Registry
from tests.wire import limit_functions, server_process, wire_functions

__all__ = ["server_process"]

# Most of what compiling costs is the import of the compiler; each server loads or compiles its functions itself.
_programs = Programs(LoopStore("user"))
for _function in Registry.load([wire_functions, limit_functions]).authored:
    _programs.warm(_function)
