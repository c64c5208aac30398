#!/usr/bin/env bash
# Kafka: the messages of an empty key go to all partitions from confluent-kafka, and to one from aiokafka.
#
# Guess: a key of no bytes is a key like any other: only a message without a key is put anywhere, so all messages of one key are in one
# partition, in order.
# Seen with confluent-kafka 2.16.1 and aiokafka 0.14.0: the default partitioner of librdkafka, consistent_random, takes an empty key for
# none, while Java's murmur2, which aiokafka has, hashes it. A state per partition has parts of the empty key in each of them, and its
# changes are out of order. With partitioner="murmur2_random" confluent-kafka agrees with aiokafka, for other keys, too.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet confluent-kafka==2.16.1 aiokafka==0.14.0
"$folder/venv/bin/python" - <<'PYTHON'
import collections

import confluent_kafka
from aiokafka.partitioner import DefaultPartitioner

keys = (b"", b"a", b"b", b"c", b"d", None)


def partitions(**options):
    mock = {"bootstrap.servers": "none", "test.mock.num.brokers": 1, "sticky.partitioning.linger.ms": 0, "log_level": 4}
    producer = confluent_kafka.Producer({**mock, **options})
    seen = collections.defaultdict(set)

    def delivered(error, message):
        assert error is None
        seen[message.key()].add(message.partition())

    for _ in range(100):
        for key in keys:
            producer.produce("t", b"x", key=key, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush() == 0
    return {key: sorted(seen[key]) for key in keys}


ours, java = partitions(), partitions(partitioner="murmur2_random")
places = list(range(4))
others = {key: [DefaultPartitioner()(key, places, places)] for key in keys[:-1]}
print("confluent-kafka", ours, "with murmur2", java, "aiokafka", others)
assert ours[b""] == ours[None] == places and [len(ours[key]) for key in keys[1:-1]] == [1] * 4
assert {key: java[key] for key in keys[:-1]} == others and java[None] == places
PYTHON
