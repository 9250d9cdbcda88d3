"""A queue on an Apache Kafka with TLS and SCRAM."""

import pytest
from confluent_kafka import Producer

from headrace.client.bootstrap import client_config
from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.queues.queue import queue
from tests.client.batches import fresh_name

pytestmark = pytest.mark.cluster

MESSAGES = 50


def test_every_message_of_a_queue_is_delivered_once(secured_bootstrap: str) -> None:
    topic = fresh_name("queue")
    with Cluster.of(secured_bootstrap) as cluster:
        create_topics(cluster, [NewTopic(name=topic, partitions=2)])
    producer = Producer(client_config(secured_bootstrap))
    for number in range(MESSAGES):
        producer.produce(topic, str(number).encode())
    assert producer.flush(30) == 0
    seen = []
    for message in queue(topic, group=topic, broker=secured_bootstrap, idle_timeout="1 minute"):
        seen.append(int(message.value or b""))
        if len(seen) == MESSAGES:
            message.accept()
            break
    assert sorted(seen) == list(range(MESSAGES))
