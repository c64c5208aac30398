"""A module that can be imported once on a machine, such as one that binds a port: not in the process that compiles."""

from foldflight import udaf
from tests.unit.listed_functions import Plain as _Plain
from tests.wire.compile_functions import COMPILES

if COMPILES:
    raise OSError("the port is taken")


@udaf
class Single(_Plain):
    pass
