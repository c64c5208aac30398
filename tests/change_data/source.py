"""A database and its connectors: statements go in, events come out in Kafka."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.environments import environment

HERE = Path(__file__).parent
SCHEMA = "inv"
SERVER: Final = {"wal_level": "logical", "max_replication_slots": 30, "max_wal_senders": 30}
_WAIT_S = 300


@dataclass(frozen=True)
class Engine:
    """What differs between connectors.

    Args:
        properties: Properties of the connector; those that all have are left out.
        partitions: The partitions of its topics.
        configs: The settings of its topics.
        aborts: Whether each batch of events is also sent in a transaction that is aborted.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    aborts: bool = False


class Source:
    """A database whose changes several connectors send.

    Args:
        url: The URL of the database.
        folder: For files.
        broker: The address of the broker.
        engines: The connectors by name, which begins the names of their topics: `name.inv.table`.
    """

    def __init__(self, url: str, folder: Path, broker: str, engines: Mapping[str, Engine]) -> None:
        import psycopg

        self.url, self.broker = url, broker
        self._folder, self._engines = folder, engines
        self._connection = psycopg.connect(url, autocommit=True, options="-c timezone=UTC -c intervalstyle=iso_8601")
        self._marks: dict[str, int] = defaultdict(lambda: -1)
        self._said: queue.Queue[tuple[str, str]] = queue.Queue()
        self._printed: list[str] = []
        self._mark = 0

    def close(self) -> None:
        """Close the connection to the database."""
        self._connection.close()

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        cursor = self._connection.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def run(self, statements: Iterable[str | list[str]]) -> None:
        """Run statements, each in a transaction of its own unless they are in a list."""
        for each in statements:
            if isinstance(each, str):
                self._connection.execute(each)
                continue
            with self._connection.transaction():
                for statement in each:
                    self._connection.execute(statement)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Run the connectors while the block runs; they begin with a snapshot of what the database has."""
        tables = [name for (name,) in self.ask(f"SELECT tablename FROM pg_tables WHERE schemaname = '{SCHEMA}'")]
        self.ask("CREATE PUBLICATION published FOR ALL TABLES")
        settings = {
            "broker": self.broker,
            "topics": {
                f"{name}.{SCHEMA}.{table}": {"partitions": engine.partitions, "configs": dict(engine.configs)}
                for name, engine in self._engines.items()
                for table in tables
            },
            "engines": {
                name: {"properties": self._properties(name, engine), "aborts": engine.aborts}
                for name, engine in self._engines.items()
            },
        }
        (self._folder / "settings.json").write_text(json.dumps(settings))
        python = environment(HERE / "requirements-debezium.txt")
        with (
            (self._folder / "connector.log").open("w") as log,
            subprocess.Popen(
                [str(python), str(HERE / "connector.py"), str(self._folder / "settings.json")],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            listener = threading.Thread(target=self._listen, args=(process,))
            listener.start()
            try:
                self.caught_up()
                yield
            finally:
                process.kill()  # a connector that dies is as good as one that is closed
                listener.join()

    def caught_up(self) -> None:
        """Wait until all events of the statements so far are in Kafka."""
        self._mark += 1
        self.ask(f"INSERT INTO {SCHEMA}.marker VALUES ({self._mark})")
        while any(self._marks[name] < self._mark for name in self._engines):
            with contextlib.suppress(queue.Empty):
                name, mark = self._said.get(timeout=_WAIT_S)
                assert mark != "ended", f"{name} ended:\n{self._log()}"
                self._marks[name] = max(self._marks[name], int(mark))
                continue
            raise AssertionError(f"{self._mark} is missing of {dict(self._marks)}:\n{self._log()}")

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            parts = line.split()
            if len(parts) == 2 and parts[0] in self._engines:
                self._said.put((parts[0], parts[1]))
            else:
                self._printed.append(line)
        self._said.put(("the program", "ended"))

    def _log(self) -> str:
        return "".join(self._printed) + (self._folder / "connector.log").read_text()[-3000:]

    def _properties(self, name: str, engine: Engine) -> dict[str, str]:
        from psycopg.conninfo import conninfo_to_dict

        place = conninfo_to_dict(self.url)
        return {
            "name": name,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": str(place["host"]),
            "database.port": str(place["port"]),
            "database.user": str(place["user"]),
            "database.password": "none",
            "database.dbname": str(place["dbname"]),
            "topic.prefix": name,
            "schema.include.list": SCHEMA,
            "slot.name": f"slot_{list(self._engines).index(name)}",
            "publication.name": "published",
            "publication.autocreate.mode": "disabled",
            "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
            "poll.interval.ms": "50",
            # Engines in one virtual machine register their metrics by these.
            "custom.metric.tags": f"engine={name}",
            **engine.properties,
        }
