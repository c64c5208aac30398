"""Change data: the readers of Debezium's and Canal's events, and upserts, beside what Spark's JVM does with the same.

A figure is the CPU time of an event in all processes: the driver, the JVM, and Spark's Python workers. Events without
schema blocks also have a rate of all cores. Both are medians of alternating rounds. Events are read from
uncompressed files, and rows are not written.

The events are made like those of a real connector (tests/debezium.py): the same members, nine columns, four events of
nine update or delete a row. Schema blocks are the connector's own.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import Figure, Sizes
from bench.spark_batch import ROUNDS, ROW_BYTES, consume, medians, session
from bench.spark_stream import BUCKETS, CORES, epochs
from examples.flights_stream import SETTINGS
from foldflight.spark import configure, from_canal, from_debezium, schema_of, upserts
from tests.debezium import values

SUITE = "changes"
PAYLOAD = "from_json of the payload alone"
SAME = "from_json of the same events"
DEBEZIUM, CANAL, UPSERTS = "from_debezium", "from_canal", "upserts"
KNOWN = "from_debezium with schema_of"
LATEST = "Spark's max_by of each key (no Python)"
CORE_RATE = 75_000  # events a second
AIMED_RATE = f"{CORE_RATE:,} events a second and core"
BARE, WITH_BLOCK, OF_CANAL = "Debezium without schema blocks", "Debezium with schema blocks", "Canal"

SCHEMA = (
    "id BIGINT, customer STRING, amount DECIMAL(10,2), qty INT, price DOUBLE, ordered TIMESTAMP_NTZ, paid TIMESTAMP, "
    "due DATE, note STRING"
)
# What the JSON of a row holds, without any conversion.
PLAIN = (
    "STRUCT<id: BIGINT, customer: STRING, amount: STRING, qty: INT, price: DOUBLE, ordered: BIGINT, paid: STRING, "
    "due: INT, note: STRING>"
)
ROWS_AN_EVENT = 5  # a fifth of the rows of other suites
KEYS, EPOCHS, FIRST_EPOCHS = 20_000, 12, 2
_GROUP = 20_000  # rows of a row group of a file
EVENT_BYTES = 4_000  # of an event with its schema block
_TICKS = os.sysconf("SC_CLK_TCK")

Way = Callable[[], object]


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each reader over the same events as Spark's own parser of JSON, then the state of upserts."""
    count = sizes.rows // ROWS_AN_EVENT
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with session(SETTINGS) as spark:
            payloads, canal = debezium_events(count), canal_events(count)
            bare = _frame(spark, folder / "bare", payloads)
            described = _frame(spark, folder / "described", payloads, _head(), "}")
            parsed = partial(_parsed, bare, f"op STRING, before {PLAIN}, after {PLAIN}")
            known = schema_of(described.limit(100))
            words: dict[str, Any] = {"decimals": "precise", "times": "microseconds"}
            cases: dict[str, dict[str, Way]] = {
                BARE: {PAYLOAD: parsed, DEBEZIUM: lambda: from_debezium(bare, SCHEMA, **words)},
                WITH_BLOCK: {
                    PAYLOAD: parsed,
                    DEBEZIUM: lambda: from_debezium(described, SCHEMA),
                    KNOWN: lambda: from_debezium(described, known),
                },
            }
            texts = _frame(spark, folder / "canal", canal)
            rows = "ARRAY<MAP<STRING, STRING>>"
            cases[OF_CANAL] = {
                SAME: partial(_parsed, texts, f"type STRING, data {rows}, old {rows}"),
                CANAL: lambda: from_canal(texts, SCHEMA),
            }
            configure(spark, row_bytes=EVENT_BYTES)
            for case, ways in cases.items():
                runs = {way: (lambda query=query: consume(query())) for way, query in ways.items()}
                for way, seconds in cpu_medians(runs).items():
                    yield Figure(SUITE, case, way, seconds / count * 1e6, "us")
            yield from _rates(cases[BARE], count)
            configure(spark, row_bytes=ROW_BYTES)
            yield from _keyed(spark, folder, count)


def _rates(ways: Mapping[str, Way], count: int) -> Iterator[Figure]:
    """Measure how many events a second all cores read, which have run each way before."""

    def seconds_of(query: Way) -> float:
        start = time.perf_counter()
        consume(query())
        return time.perf_counter() - start

    case = f"{BARE} on {CORES} cores"
    for way, seconds in medians({way: partial(seconds_of, query) for way, query in ways.items()}).items():
        yield Figure(SUITE, case, way, count / seconds, "rows/s")
    yield Figure(SUITE, case, AIMED_RATE, CORE_RATE * CORES, "rows/s")


def _keyed(spark: Any, folder: Path, count: int) -> Iterator[Figure]:
    """Measure a stream that keeps the last row of each key: its start with its first epochs, and the epochs after them.

    A stream starts once and runs for days. So each figure is the difference of a long run and a short one.
    """
    size = count // (4 * CORES)
    chosen = np.random.default_rng(3)
    parts = []
    for number in range(EPOCHS * CORES):
        sequence = np.arange(number * size, (number + 1) * size)
        columns = {"k": chosen.integers(0, KEYS, size), "v": sequence, "w": chosen.integers(0, 100, size, np.int32)}
        parts.append(pa.table(columns))
    short, whole = folder / "short", folder / "whole"
    for data, some in ((short, parts[: FIRST_EPOCHS * CORES]), (whole, parts)):
        data.mkdir()
        for number, part in enumerate(some):
            path = data / f"{number:03}.parquet"
            pq.write_table(part, path)
            os.utime(path, (number // CORES + 1, number // CORES + 1))
    ways: dict[str, Callable[[Any], Any]] = {
        LATEST: _latest,
        UPSERTS: lambda frame: upserts(frame, keys="k", sequence_by="v", buckets=BUCKETS),
    }
    numbers = iter(range(1000))
    runs = {
        f"{way}, {data.name}": (lambda data=data, query=query: epochs(spark, data, query, folder / f"{next(numbers)}"))
        for way, query in ways.items()
        for data in (short, whole)
    }
    seconds = cpu_medians(runs)
    rows = size * CORES * (EPOCHS - FIRST_EPOCHS)
    for way in ways:
        start, run = (seconds[f"{way}, {data.name}"] for data in (short, whole))
        case = f"a stream of {size * CORES:,} rows an epoch, {KEYS:,} keys"
        yield Figure(SUITE, case, way, (run - start) / rows * 1e6, "us")
        yield Figure(SUITE, f"the start of a stream, and {FIRST_EPOCHS} epochs", way, start, "s")
    batch = spark.read.parquet(str(whole))
    in_batch = {way: (lambda query=query: consume(query(batch))) for way, query in ways.items()}
    for way, taken in cpu_medians(in_batch).items():
        yield Figure(SUITE, f"a batch, {KEYS:,} keys", way, taken / (size * CORES * EPOCHS) * 1e6, "us")


def _latest(frame: Any) -> Any:
    from pyspark.sql import functions as sf

    return frame.groupBy("k").agg(sf.max_by(sf.struct("v", "w"), "v").alias("row"))


def cpu_medians(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median CPU time of each way in seconds, over alternating rounds. The first round is not counted."""
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS + 1):
        for way, run in ways.items():
            before = cpu_seconds()
            run()
            taken[way].append(cpu_seconds() - before)
    return {way: statistics.median(seconds[1:]) for way, seconds in taken.items()}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all its descendants, also of those that ended."""
    return sum(cpu_seconds_by_program().values())


def cpu_seconds_by_program() -> dict[str, float]:
    """Return the CPU time of this process and of all its descendants, also of those that ended, by their programs."""
    children: dict[int, list[int]] = {}
    times: dict[int, tuple[str, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition(" (")[2].rpartition(") ")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        fields = rest.split()
        process = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(process)
        times[process] = (name, sum(map(int, fields[11:15])))
    todo, seconds = [os.getpid()], dict[str, float]()
    while todo:
        process = todo.pop()
        name, ticks = times.get(process, ("", 0))
        seconds[name] = seconds.get(name, 0) + ticks / _TICKS
        todo += children.get(process, [])
    return seconds


def _parsed(frame: Any, schema: str) -> Any:
    from pyspark.sql import functions as sf

    return frame.select(sf.from_json(sf.col("value").cast("string"), schema, {"mode": "FAILFAST"}).alias("event"))


def _frame(spark: Any, folder: Path, texts: list[str], head: str = "", tail: str = "") -> Any:
    """Write texts, each between a head and a tail, and return them as a DataFrame."""
    folder.mkdir()
    size = -(-len(texts) // CORES)
    schema = pa.schema([("value", pa.binary())])
    for part in range(CORES):
        path = folder / f"{part}.parquet"
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for first in range(part * size, (part + 1) * size, _GROUP):
                chosen = texts[first : min(first + _GROUP, (part + 1) * size)]
                writer.write_batch(
                    pa.record_batch(
                        [pa.array([f"{head}{text}{tail}".encode() for text in chosen], pa.binary())], schema=schema
                    )
                )
    return spark.read.parquet(str(folder))


def _head() -> str:
    """Return the beginning of an event up to its payload, as the connector writes it."""
    event = next(each for each in values("default-schema", "orders") if each)
    mark = ',"payload":'
    return event[: event.index(mark) + len(mark)]


def debezium_events(count: int) -> list[str]:
    """Return payloads of the mode `default`: decimals as base64, and times in microseconds."""
    chosen = np.random.default_rng(2)
    ops = chosen.choice(list("rcud"), count, p=[0.25, 0.3, 0.3, 0.15])
    amounts = chosen.integers(-100_000, 1_000_000, (count, 2))
    prices = chosen.integers(1, 100_000, count) / 8
    return [_event(number, str(op), amounts[number], prices[number]) for number, op in enumerate(ops)]


def _event(number: int, op: str, amounts: Any, price: float) -> str:
    old, new = (_row(number, int(amount), float(price)) for amount in amounts)
    at = 1795906126838705 + number
    source = {
        "version": "3.6.3.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": at // 1000,
        "snapshot": "false",
        "db": "postgres",
        "sequence": f'["{at % 10**8}","{at % 10**8}"]',
        "ts_us": at,
        "ts_ns": at * 1000,
        "schema": "inv",
        "table": "orders",
        "txId": 1002 + number,
        "lsn": 30784912 + number,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }
    event = {
        "before": old if op in "ud" else None,
        "after": None if op == "d" else new,
        "source": source,
        "transaction": None,
        "op": op,
        "ts_ms": at // 1000,
        "ts_us": at,
        "ts_ns": at * 1000,
    }
    return json.dumps(event, separators=(",", ":"))


def _row(number: int, amount: int, price: float) -> dict[str, Any]:
    unscaled = amount.to_bytes(amount.bit_length() // 8 + 1, "big", signed=True)
    return {
        "id": number,
        "customer": f"customer {number % 997}",
        "amount": base64.b64encode(unscaled).decode(),
        "qty": number % 50,
        "price": price,
        "ordered": 1738317600000000 + number * 1_000_003,
        "paid": f"2025-01-31T{number % 24:02}:00:{number % 60:02}.{number % 10**6:06}Z" if number % 3 else None,
        "due": 20147 + number % 300,
        "note": "a" * (number % 7),
    }


def canal_events(count: int) -> list[str]:
    """Return events of Canal: texts, with one row each."""
    found = []
    for number in range(count):
        row = {
            "id": str(number),
            "customer": f"customer {number % 997}",
            "amount": f"{number % 10**6 / 100:.2f}",
            "qty": str(number % 50),
            "price": str(number % 10**5 / 8),
            "ordered": "2025-01-31 10:00:00.5",
            "paid": "2025-01-31 10:00:00.123456",
            "due": "2025-02-28",
            "note": "a" * (number % 7),
        }
        kind = ("INSERT", "INSERT", "UPDATE", "DELETE")[number % 4]
        old = [{"amount": "1.00", "qty": "7"}] if kind == "UPDATE" else None
        event = {"data": [row], "database": "inv", "es": 1, "id": number, "isDdl": False, "old": old}
        found.append(json.dumps({**event, "pkNames": ["id"], "table": "orders", "ts": 1, "type": kind}))
    return found
