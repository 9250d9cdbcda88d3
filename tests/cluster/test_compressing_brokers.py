"""Apache Kafka whose brokers compress what producers did not: `compression.type` in server.properties."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.spark.progress import TOPIC, create_progress_topic, read_marker
from tests.broker.processes import wait_until
from tests.spark.records import delete_topic
from tests.spark.test_progress import a_mark, write
from tools.apache_kafka import ApacheKafka

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka(heap="320M", properties={"compression.type": "gzip"}) as server:
        yield server


def test_the_mark_of_a_batch_is_found_where_brokers_compress(kafka: ApacheKafka) -> None:
    with Cluster.of(kafka.bootstrap) as cluster:
        # A topic that was made by hand has the setting of the brokers.
        create_topics(cluster, [NewTopic(name=TOPIC, partitions=1, configs={"cleanup.policy": "compact"})])
        write(cluster, "revenue", a_mark(0))
        write(cluster, "revenue", a_mark(1), end="abort")
        assert read_marker(cluster, "revenue") == a_mark(0)


def test_the_topic_of_the_marks_is_not_compressed_by_brokers(kafka: ApacheKafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with Cluster.of(kafka.bootstrap) as cluster:
        if TOPIC in cluster.topics((TOPIC,)):
            delete_topic(kafka.bootstrap, TOPIC)
            wait_until(lambda: TOPIC not in cluster.topics((TOPIC,)), "the old topic to be gone")
        create_progress_topic(cluster)
    resource = ConfigResource("topic", TOPIC)
    configs = admin.describe_configs([resource])[resource].result(30)
    assert configs["compression.type"].value == "producer"
