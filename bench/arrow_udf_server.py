"""arrow-udf's published server with a few functions. It runs in an environment of its own (bench/environments.py).

It prints its port, and serves until its standard input ends. A test compares its answers with ours.
"""

import sys

from arrow_udf import UdfServer, udf, udtf


@udf(input_types=["BIGINT", "INT"], result_type="BIGINT")
def scored(v, w):
    """Measured by bench/scalar.py."""
    return v * w + 7


@udf(input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
def multiply(x, y):
    """Return NULL where an argument is NULL."""
    return None if x is None or y is None else x * y


@udtf(input_types="INT", result_types="INT")
def series(n):
    """Return the numbers below n."""
    yield from range(n)


@udf(input_types=["JSONB"], result_type="JSONB")
def tagged(value):
    """Wrap a document."""
    return {"value": value, "tags": [1, None]}


@udf(input_types=["BIGINT[]"], result_type="BIGINT")
def total(values):
    """Add up a list, as RisingWave's `aggregate:total(x)` does."""
    return None if values is None else sum(values)


server = UdfServer("127.0.0.1:0")
for function in (scored, multiply, series, tagged, total):
    server.add_function(function)
print(server.port, flush=True)
sys.stdin.read()
server.shutdown()
