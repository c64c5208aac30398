"""External functions of RisingWave and Databend: stateless calls, which the descriptor path selects.

Our own protocol is elsewhere: its messages are encoded in `exchange/encoding.py`.

    path ["multiply"]             RisingWave (and other clients of arrow-udf): one exchange for each chunk
    path ["databend:multiply"]    Databend: CREATE FUNCTION ... HANDLER = 'databend:multiply'
    path ["aggregate:average"]    an aggregate function over lists with the rows of a group; also after databend:

Column names do not matter. The answer has the result columns. An adapter determines the encoding of types:

    declared            RisingWave                          Databend
    DECIMAL(p, s)       utf8, extension arrowudf.decimal    decimal128
    JSON                utf8, extension arrowudf.json       large_binary, Extension = Variant
    STRING, BINARY      utf8, binary                        large_utf8, large_binary
    TIMESTAMPTZ         timestamp[us, "+00:00"]             timestamp[us]
    VECTOR(n)           list<float>                         fixed_size_list<float>, Extension = Vector

Source: arrow-udf-flight/python and src/lib.rs of arrow-udf; databend_udf/udf.py of databend-udf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from foldflight.ext.wire.stateless_calls import Databend, GroupCall, RisingWave, ScalarCall, WireAdapter
from foldflight.functions import AnyFunction
from foldflight.functions.author.spec import ScalarFunction
from foldflight.server.stateless import StatelessCall, StatelessClients

_DATABEND: Final = "databend:"
_AGGREGATE: Final = "aggregate:"
_ADAPTERS: Final = {"": RisingWave(), _DATABEND: Databend()}


def provide() -> StatelessClients:
    """Return what answers the clients."""
    return _Clients()


class _Clients:
    version_action = "protocol_version"
    # The version of arrow-udf's protocol that defines these types. Without an answer, a client assumes version 1.
    version_answer = b"\x02"

    def route(self, path: str) -> Route:
        """Return what a path selects."""
        prefix = _DATABEND if path.startswith(_DATABEND) else ""
        name = path.removeprefix(prefix)
        return Route(_ADAPTERS[prefix], name.removeprefix(_AGGREGATE), takes_lists=name.startswith(_AGGREGATE))


@dataclass(frozen=True)
class Route:
    """What a path selects.

    Args:
        adapter: The types of the client.
        name: The name of the function.
        takes_lists: Whether the function takes lists with the rows of a group.
    """

    adapter: WireAdapter
    name: str
    takes_lists: bool

    def schema(self, function: AnyFunction) -> pa.Schema:
        """Return inputs and outputs as fields, in the types of the client."""
        return self.adapter.schema(function)

    def call(self, function: AnyFunction, columns: pa.Schema) -> StatelessCall:
        """Return a call of the function. Raises the errors of the classes of calls."""
        kind = ScalarCall if isinstance(function, ScalarFunction) else GroupCall
        return kind(self.adapter, function, columns)
