"""Settings over the wire: described, set, edited as lists, and refused before anything changes."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.protocol.compression import GZIP
from headrace.testing import EmbeddedBroker
from tests.broker.wire_client import WireClient, batch_of

DELETE_RECORDS, DESCRIBE, ALTER, EDIT, LIST = 21, 32, 33, 44, 74
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
FROM_TOPIC, FROM_START, FROM_DEFAULT, FROM_GROUP = 1, 4, 5, 8


@pytest.fixture
def client(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as client:
        client.create_topic("orders", retention_ms="1000")
        yield client


def describe(client: WireClient, name: str, kind: int = TOPIC, keys: Sequence[str] | None = None) -> Any:
    """The answer for one resource."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    answer = client.ask(DESCRIBE, 4, resources=[resource], include_synonyms=True, include_documentation=True)
    return answer.results[0]


def values(client: WireClient, *keys: str) -> dict[str, str]:
    """Some settings of the topic."""
    return {config.name: config.value for config in describe(client, "orders", keys=keys).configs}


def edit_group(client: WireClient, name: str, *changes: tuple[str, int, str | None]) -> Any:
    """The answer to an incremental change of a group's settings."""
    return edit(client, *changes, resource_type=GROUP, resource_name=name)


def listed(client: WireClient, *kinds: int) -> set[tuple[int, str]]:
    """The resources of these types, or of all, that have settings."""
    answer = client.ask(LIST, 1, resource_types=kinds)
    assert answer.error_code is ErrorCode.none
    return {(each.resource_type, each.resource_name) for each in answer.config_resources}


def edit(client: WireClient, *changes: tuple[str, int, str | None], **more: Any) -> Any:
    """The answer to an incremental change of the topic's settings."""
    configs = [{"name": name, "config_operation": what, "value": value} for name, what, value in changes]
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configs": configs}
    return client.ask(EDIT, 1, resources=[resource | more], validate_only=False).responses[0]


def test_a_setting_is_described_with_its_source_and_meaning(client: WireClient) -> None:
    (config,) = describe(client, "orders", keys=["retention.ms"]).configs
    assert (config.value, config.config_source, config.read_only) == ("1000", FROM_TOPIC, False)
    assert config.documentation.startswith("How long records are retained")
    assert [synonym.value for synonym in config.synonyms] == ["1000"]


def test_all_settings_are_described_when_none_is_named(client: WireClient) -> None:
    sources = {config.name: config.config_source for config in describe(client, "orders").configs}
    assert sources["retention.ms"] == FROM_TOPIC
    assert sources["segment.bytes"] == FROM_DEFAULT
    assert len(sources) > 20


def test_the_brokers_settings_are_shown_and_cannot_be_changed(client: WireClient) -> None:
    (config,) = describe(client, "1", BROKER, ["num.partitions"]).configs
    assert (config.value, config.config_source, config.read_only) == ("1", FROM_START, True)
    change = {"name": "num.partitions", "config_operation": SET, "value": "9"}
    resource = {"resource_type": BROKER, "resource_name": "1", "configs": [change]}
    (refused,) = client.ask(EDIT, 1, resources=[resource], validate_only=False).responses
    assert (refused.error_code, "command line options" in refused.error_message) == (
        ErrorCode.invalid_request,
        True,
    )


@pytest.mark.parametrize(("kind", "name"), [(BROKER, "7"), (BROKER_LOGGER, "1"), (99, "x")])
def test_other_resources_have_no_settings(client: WireClient, kind: int, name: str) -> None:
    assert describe(client, name, kind).error_code is ErrorCode.invalid_request


def test_a_topic_that_is_not_there_has_none_either(client: WireClient) -> None:
    assert describe(client, "nobody").error_code is ErrorCode.unknown_topic_or_partition


def test_settings_are_set_and_deleted_one_by_one(client: WireClient) -> None:
    edit(client, ("segment.bytes", SET, "2048"), ("retention.ms", DELETE, None))
    assert values(client, "segment.bytes", "retention.ms") == {
        "segment.bytes": "2048",
        "retention.ms": "604800000",
    }


def test_a_list_is_added_to_and_taken_from(client: WireClient) -> None:
    edit(client, ("cleanup.policy", APPEND, "compact"))
    assert values(client, "cleanup.policy") == {"cleanup.policy": "delete,compact"}
    edit(client, ("cleanup.policy", SUBTRACT, "delete"))
    assert values(client, "cleanup.policy") == {"cleanup.policy": "compact"}


REFUSED = [
    ("retention.ms", SET, "soon"),
    ("retention.ms", SET, None),
    ("retention.ms", APPEND, "5"),
    ("retention.ms", 9, "5"),
    ("segment.bytes", SET, "0"),
    ("min.cleanable.dirty.ratio", SET, "nan"),
    ("cleanup.policy", SET, "burn"),
    ("cleanup.policy", SET, "delete,"),
    ("compression.type", SET, "none"),
    ("compression.zstd.level", SET, "23"),
    ("compression.gzip.level", SET, "0"),
    ("remote.storage.enable", SET, "true"),
    # What loads classes or reads files in other brokers (CVE-2023-25194, CVE-2025-27817) is unknown here.
    ("sasl.jaas.config", SET, "com.sun.security.auth.module.JndiLoginModule required;"),
    ("sasl.oauthbearer.token.endpoint.url", SET, "file:///etc/passwd"),
    ("interceptor.classes", SET, "java.lang.Runtime"),
]


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: f"{change[0]}={change[2]}"[:40])
def test_a_change_that_is_refused_changes_nothing(
    client: WireClient, change: tuple[str, int, str | None]
) -> None:
    refused = edit(client, ("segment.ms", SET, "77"), change)
    assert refused.error_code is ErrorCode.invalid_config
    assert change[0] in refused.error_message
    assert values(client, "retention.ms", "segment.ms") == {"retention.ms": "1000", "segment.ms": "604800000"}


def test_a_change_may_be_tried_without_being_made(client: WireClient) -> None:
    change = {"name": "retention.ms", "config_operation": SET, "value": "5"}
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configs": [change]}
    (tried,) = client.ask(EDIT, 1, resources=[resource], validate_only=True).responses
    assert tried.error_code is ErrorCode.none
    assert values(client, "retention.ms") == {"retention.ms": "1000"}


def test_all_settings_are_replaced_at_once(client: WireClient) -> None:
    resource = {
        "resource_type": TOPIC,
        "resource_name": "orders",
        "configs": [{"name": "segment.ms", "value": "77"}],
    }
    client.ask(ALTER, 2, resources=[resource], validate_only=False)
    assert values(client, "retention.ms", "segment.ms") == {"retention.ms": "604800000", "segment.ms": "77"}


def test_the_brokers_own_topics_keep_their_settings(client: WireClient) -> None:
    refused = edit(client, ("retention.ms", SET, "1"), resource_name="__consumer_offsets")
    assert refused.error_code is ErrorCode.invalid_request


ATTRIBUTES_AT = 21
"""Where a batch says its codec; what lies before is the broker's."""
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


@pytest.mark.parametrize("codec", CODECS)
def test_kafkas_compression_types_are_accepted_and_batches_stored_as_they_come(
    client: WireClient, codec: str
) -> None:
    assert edit(client, ("compression.type", SET, codec)).error_code is ErrorCode.none
    assert values(client, "compression.type") == {"compression.type": codec}
    batch = batch_of(b"a" * 100, codec=GZIP)
    client.produce("orders", batch)
    (found,) = client.fetch({("orders", 0): 0}).responses[0].partitions
    assert found.records[ATTRIBUTES_AT:] == batch[ATTRIBUTES_AT:]


def test_a_topic_without_a_cleanup_policy_keeps_every_record(client: WireClient) -> None:
    assert edit(client, ("cleanup.policy", SUBTRACT, "delete")).error_code is ErrorCode.none
    (config,) = describe(client, "orders", keys=["cleanup.policy"]).configs
    assert (config.value, config.config_source) == ("", FROM_TOPIC)
    assert delete_records(client) is ErrorCode.none
    edit(client, ("cleanup.policy", APPEND, "compact"))
    assert values(client, "cleanup.policy") == {"cleanup.policy": "compact"}
    assert delete_records(client) is ErrorCode.policy_violation


def delete_records(client: WireClient) -> ErrorCode:
    """Whether the records of the topic may be deleted by a client."""
    topic = {"name": "orders", "partitions": [{"partition_index": 0, "offset": -1}]}
    answer = client.ask(DELETE_RECORDS, 2, topics=[topic], timeout=10_000)
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


GROUP_SETTINGS = {
    "consumer.session.timeout.ms": ("45000", "60000", "44999"),
    "consumer.heartbeat.interval.ms": ("5000", "15000", "4999"),
    "consumer.assignment.interval.ms": ("1000", "0", "15001"),
    "share.assignment.interval.ms": ("1000", "15000", "-1"),
    "streams.session.timeout.ms": ("45000", "60000", "60001"),
    "streams.heartbeat.interval.ms": ("5000", "15000", "15001"),
    "streams.assignment.interval.ms": ("1000", "0", "-1"),
    "streams.num.standby.replicas": ("0", "2", "3"),
    "streams.initial.rebalance.delay.ms": ("3000", "0", "-1"),
}


@pytest.mark.parametrize("name", GROUP_SETTINGS)
def test_settings_of_groups_have_kafkas_defaults_and_bounds(client: WireClient, name: str) -> None:
    default, allowed, refused = GROUP_SETTINGS[name]
    (config,) = describe(client, "g", GROUP, [name]).configs
    assert (config.value, config.config_source) == (default, FROM_DEFAULT)
    assert edit_group(client, "g", (name, SET, allowed)).error_code is ErrorCode.none
    assert edit_group(client, "g", (name, SET, refused)).error_code is ErrorCode.invalid_config
    (config,) = describe(client, "g", GROUP, [name]).configs
    assert (config.value, config.config_source) == (allowed, FROM_GROUP)


def test_a_group_without_a_name_has_no_settings(client: WireClient) -> None:
    assert describe(client, "", GROUP).error_code is ErrorCode.invalid_request


def test_resources_with_settings_are_listed(client: WireClient) -> None:
    edit_group(client, "g", ("consumer.session.timeout.ms", SET, "50000"))
    edit_group(client, "other", ("share.isolation.level", SET, "read_committed"))
    edit_group(client, "other", ("share.isolation.level", DELETE, None))
    assert listed(client, GROUP) == {(GROUP, "g")}
    assert {(TOPIC, "orders"), (BROKER, "1"), (GROUP, "g")} <= listed(client)
    assert listed(client, BROKER_LOGGER, CLIENT_METRICS) == set()
    assert client.ask(LIST, 1, resource_types=[99]).error_code is ErrorCode.unsupported_version
    assert client.ask(LIST, 0).config_resources == ()
