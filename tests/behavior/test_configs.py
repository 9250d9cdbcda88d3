"""Settings of topics under Kafka's names: described, changed, refused."""

import pytest
from kio.schema.errors import ErrorCode

from tests.behavior.clients.contract import Client, Config, Refused
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import wait_until

DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
}
BAD_SETTINGS = [
    ("retention.ms", "soon"),
    ("cleanup.policy", "burn"),
    ("max.message.bytes", "-1"),
    ("min.cleanable.dirty.ratio", "2"),
    ("no.such.setting", "1"),
]


def test_a_topic_has_kafkas_defaults(client: Client, new_topic: NewTopic) -> None:
    configs = client.configs(new_topic())
    assert {name: configs[name].value for name in DEFAULTS} == DEFAULTS


def test_a_topic_is_created_with_its_settings(client: Client, new_topic: NewTopic) -> None:
    configs = client.configs(new_topic(retention_ms="60000", cleanup_policy="compact"))
    assert configs["retention.ms"] == Config(value="60000", is_default=False)
    assert configs["cleanup.policy"] == Config(value="compact", is_default=False)
    assert configs["retention.bytes"] == Config(value="-1", is_default=True)


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS)
def test_a_topic_with_a_bad_setting_is_refused(
    client: Client, new_name: NewName, name: str, value: str
) -> None:
    topic = new_name("bad")
    with pytest.raises(Refused) as refused:
        client.create_topic(topic, 1, {name: value})
    assert refused.value.error is ErrorCode.invalid_config
    assert topic not in client.topics()


@pytest.mark.needs("incremental configs")
def test_one_setting_changes_and_the_others_stay(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(retention_ms="60000")
    client.alter_configs(topic, {"max.message.bytes": "5000"})
    wait_until(lambda: client.configs(topic)["max.message.bytes"].value == "5000", "the change")
    assert client.configs(topic)["retention.ms"].value == "60000"


@pytest.mark.needs("incremental configs")
def test_a_setting_goes_back_to_its_default(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(retention_ms="60000")
    client.alter_configs(topic, {"retention.ms": None})
    expected = Config(value="604800000", is_default=True)
    wait_until(lambda: client.configs(topic)["retention.ms"] == expected, "the default")


@pytest.mark.needs("incremental configs")
@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS)
def test_a_change_to_a_bad_setting_is_refused(
    client: Client, new_topic: NewTopic, name: str, value: str
) -> None:
    topic = new_topic()
    with pytest.raises(Refused) as refused:
        client.alter_configs(topic, {name: value})
    assert refused.value.error is ErrorCode.invalid_config


@pytest.mark.needs("replace configs")
def test_replaced_settings_reset_the_others(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(retention_ms="60000")
    client.replace_configs(topic, {"max.message.bytes": "5000"})
    wait_until(lambda: client.configs(topic)["max.message.bytes"].value == "5000", "the change")
    assert client.configs(topic)["retention.ms"] == Config(value="604800000", is_default=True)


@pytest.mark.needs("incremental configs")
def test_settings_of_an_unknown_topic_cannot_change(client: Client, new_name: NewName) -> None:
    with pytest.raises(Refused) as refused:
        client.alter_configs(new_name("unknown"), {"retention.ms": "60000"})
    assert refused.value.error is ErrorCode.unknown_topic_or_partition
