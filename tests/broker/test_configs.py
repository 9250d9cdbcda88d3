"""Settings over the wire: described, set, edited as lists, and refused before anything changes."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.testing import EmbeddedBroker
from tests.broker.wire_client import WireClient

DESCRIBE, ALTER, EDIT = 32, 33, 44
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
FROM_TOPIC, FROM_START, FROM_DEFAULT = 1, 4, 5


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


def edit(client: WireClient, *changes: tuple[str, int, str | None], **more: Any) -> Any:
    """The answer to an incremental change of the topic's settings."""
    configs = [{"name": name, "config_operation": what, "value": value} for name, what, value in changes]
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configs": configs}
    return client.ask(EDIT, 1, resources=[resource | more], validate_only=False).responses[0]


def test_a_setting_is_described_with_its_source_and_meaning(client: WireClient) -> None:
    (config,) = describe(client, "orders", keys=["retention.ms"]).configs
    assert (config.value, config.config_source, config.read_only) == ("1000", FROM_TOPIC, False)
    assert config.documentation.startswith("How long records are kept")
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
    assert (refused.error_code, "arguments" in refused.error_message) == (ErrorCode.invalid_request, True)


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
    ("cleanup.policy", SUBTRACT, "delete"),
    ("compression.type", SET, "zstd"),
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
