"""A topic that is full, as each client library reports it; Apache Kafka has no such topics, and says so."""

import pytest
from kio.schema.errors import ErrorCode

from tests.behavior.clients.contract import (
    Client,
    ConsumerOptions,
    Message,
    ProducerOptions,
    Refused,
    TopicPartition,
)
from tests.behavior.names import NewName

FULL_AT_TWO = {"headrace.overflow": "drop-newest", "headrace.overflow.records": "2"}


@pytest.mark.each(kind=["plain", "idempotent after a refusal"])
def test_a_full_topic_refuses_and_takes_again_when_consumers_have_read(
    client: Client, broker_kind: str, new_name: NewName, kind: str
) -> None:
    topic, group = new_name("full"), new_name("readers")
    settings = FULL_AT_TWO | {"headrace.overflow.groups": group}
    if broker_kind == "apache":
        with pytest.raises(Refused) as refused:
            client.create_topic(topic, 1, settings)
        assert refused.value.error is ErrorCode.invalid_config
        return
    client.create_topic(topic, 1, settings)
    partition = TopicPartition(topic, 0)
    consumer = client.consumer(ConsumerOptions(group=group))
    consumer.assign(partition)
    consumer.commit({partition: 0})
    producer = client.producer(ProducerOptions(idempotent=kind != "plain"))
    assert [sent.offset for sent in producer.send(topic, [Message(value=b"a"), Message(value=b"b")])] == [
        0,
        1,
    ]
    with pytest.raises(Refused) as refused:
        producer.send(topic, [Message(value=b"c")])
    assert refused.value.error is ErrorCode.policy_violation
    consumer.commit({partition: 2})
    (sent,) = producer.send(topic, [Message(value=b"d")])
    assert sent.offset == 2
