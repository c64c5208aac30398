"""External functions of RisingWave and Databend: stateless calls, which the descriptor path selects.

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

from typing import Final

from foldflight.adapters.wire.adapter import WireAdapter
from foldflight.adapters.wire.databend import Databend
from foldflight.adapters.wire.risingwave import RisingWave

PROTOCOL_VERSION_ACTION: Final = "protocol_version"
PROTOCOL_VERSION_ANSWER: Final = b"\x02"
"""The version of arrow-udf's protocol that defines these types. Without an answer, a client assumes version 1.

A client reads only this answer. So if tokens are required, every action without a valid token gets this answer and then
UNAUTHENTICATED: the server need not know which action was requested.
"""

_DATABEND: Final = "databend:"
_AGGREGATE: Final = "aggregate:"
_ADAPTERS: Final = {"": RisingWave(), _DATABEND: Databend()}


def wire_adapter_of(path: str) -> tuple[WireAdapter, str, bool]:
    """Return the adapter of a descriptor's path, the name of the function, and whether it is to take lists of rows."""
    prefix = _DATABEND if path.startswith(_DATABEND) else ""
    name = path.removeprefix(prefix)
    return _ADAPTERS[prefix], name.removeprefix(_AGGREGATE), name.startswith(_AGGREGATE)
