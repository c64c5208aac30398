"""The settings of connectors that change what events say, and what `from_debezium` is told of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.change_data.source import Engine

_PLAIN = {"converter.schemas.enable": "false"}
_FLAT = {"transforms": "flat", "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState"}
_ADAPTIVE = {
    **dict.fromkeys(["c_time", "c_ts", "c_tss", "ordered"], "microseconds"),
    **dict.fromkeys(["c_time3", "c_ts0", "c_ts3"], "milliseconds"),
}
_NANOSECONDS = "nanoseconds"


@dataclass(frozen=True)
class Mode:
    """A connector, and how its events are read.

    Args:
        engine: The connector.
        words: The arguments of `from_debezium`.
        texts: The columns that are declared as STRING in this mode.
    """

    engine: Engine
    words: dict[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ("c_hstore",)

    def words_for(self, columns: Iterable[str]) -> dict[str, Any]:
        """Return the arguments for some columns of a table."""
        times = self.words.get("times")
        if not isinstance(times, dict):
            return self.words
        return {**self.words, "times": {name: unit for name, unit in times.items() if name in set(columns)}}


def _mode(properties: dict[str, str], **words: Any) -> Mode:
    return Mode(Engine(properties), words)


MODES: Final[dict[str, Mode]] = {
    "defaults": _mode({}),
    "payload": _mode(_PLAIN, decimals="precise", times=_ADAPTIVE, binary="base64"),
    "silent": _mode(_PLAIN),
    "all": _mode(
        {"skipped.operations": "none", "provide.transaction.metadata": "true", "heartbeat.interval.ms": "300"}
    ),
    "iso": _mode(
        {
            **_PLAIN,
            "decimal.handling.mode": "string",
            "time.precision.mode": "isostring",
            "interval.handling.mode": "string",
            "binary.handling.mode": "hex",
        },
        decimals="string",
        times="isostring",
        binary="hex",
    ),
    "connect": _mode(
        {**_PLAIN, "decimal.handling.mode": "double", "time.precision.mode": "connect"},
        decimals="double",
        times="connect",
    ),
    "connect_block": _mode({"time.precision.mode": "connect", "binary.handling.mode": "base64"}),
    "microseconds": _mode(
        {**_PLAIN, "decimal.handling.mode": "string", "time.precision.mode": "microseconds"},
        decimals="string",
        times="microseconds",
        binary="base64",
    ),
    "nanoseconds": _mode(
        {**_PLAIN, "time.precision.mode": _NANOSECONDS}, decimals="precise", times=_NANOSECONDS, binary="base64"
    ),
    "nanoseconds_block": Mode(Engine({"time.precision.mode": _NANOSECONDS, "hstore.handling.mode": "map"}), texts=()),
    "numbers": _mode(
        {**_PLAIN, "time.precision.mode": "adaptive_time_microseconds", "converter.decimal.format": "NUMERIC"},
        decimals="double",
        times={**_ADAPTIVE, "c_time3": "microseconds"},
    ),
    "flat": _mode(
        {
            **_FLAT,
            "transforms.flat.delete.tombstone.handling.mode": "rewrite",
            "transforms.flat.add.fields": "op,lsn",
        },
        keys="id",
    ),
}

# Ways through Kafka: topics of three partitions, and batches that are sent in two transactions, one of them aborted.
WAYS: Final[dict[str, Engine]] = {"spread": Engine(_PLAIN, partitions=3), "aborted": Engine(_PLAIN, aborts=True)}
