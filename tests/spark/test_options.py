"""Options that are wrong are refused with a sentence that helps."""

import pytest

from headrace.client.partition import TopicPartition
from headrace.spark.errors import BadOption
from headrace.spark.offset_reader import Bound
from headrace.spark.offsets import read_journal, read_positions, write_journal
from headrace.spark.options import ClusterConnection, Options, read_duration_s
from headrace.spark.source import KNOWN, SourceSettings, Subscription

BASIC = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def settings(**more: str) -> SourceSettings:
    return SourceSettings.of(BASIC | more, parallelism=2)


def options(**given: str) -> Options:
    return Options(given, known=KNOWN)


def test_a_misspelt_option_is_refused_with_the_right_name() -> None:
    with pytest.raises(BadOption, match="did you mean maxOffsetsPerTrigger"):
        settings(maxoffsetpertrigger="10")


def test_an_option_is_known_whatever_its_case() -> None:
    assert settings(FAILONDATALOSS="False").fail_on_data_loss is False


def test_the_brokers_must_be_named() -> None:
    with pytest.raises(BadOption, match=r"kafka\.bootstrap\.servers is missing"):
        SourceSettings.of({"subscribe": "orders"}, parallelism=1)


@pytest.mark.parametrize("more", [{"assign": '{"orders": [0]}'}, {"subscribe": ""}])
def test_exactly_one_way_to_subscribe(more: dict[str, str]) -> None:
    with pytest.raises(BadOption, match="exactly one of subscribe, subscribePattern, assign"):
        settings(**more)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("failOnDataLoss", "yes", "write true or false"),
        ("minPartitions", "0", "at least 1"),
        ("maxRecordsPerPartition", "many", "whole number"),
        ("kafka.isolation.level", "none", "read_committed or read_uncommitted"),
        ("kafka.auto.offset.reset", "earliest", "startingOffsets"),
        ("kafka.security.protocol", "SSL", "the option securityProfile"),
        ("kafka.sasl.password", "secret", r"kafka\.sasl\.password is not accepted"),
        ("securityProfile", "a b", "not the name of a security profile"),
        ("valueFormat", "xml", "raw or text or json or csv"),
        ("valueFormat", "json", "valueSchema is missing"),
        ("valueSchema", "a int", "has no effect"),
        ("maxAhead", "1d", "name their field by eventTime"),
        ("eventTime", "at", "set valueFormat to json or csv"),
        ("timeUnit", "minutes", "write auto, s, ms, us, ns"),
        ("columns", "value,ofset", "did you mean offset"),
    ],
)
def test_a_wrong_value_is_refused_with_what_to_write(name: str, value: str, hint: str) -> None:
    with pytest.raises(BadOption, match=hint):
        settings(**{name: value})


def test_tuning_of_clients_is_let_through() -> None:
    assert settings(**{"kafka.fetch.min.bytes": "1", "kafkaConsumer.pollTimeoutMs": "9"}).read_committed


def test_a_link_keeps_its_name_and_its_patience() -> None:
    given = options(
        **{"kafka.bootstrap.servers": "a:1", "kafka.client.id": "me", "kafka.request.timeout.ms": "500"}
    )
    assert ClusterConnection.of(given) == ClusterConnection(bootstrap="a:1", client_id="me", timeout_s=0.5)


@pytest.mark.parametrize(
    ("bootstrap", "profile", "found"),
    [
        ("a:1,b:2", "production", "production://a:1,b:2"),
        ("production://a:1", "production", "production://a:1"),
        ("production://a:1", None, "production://a:1"),
        ("a:1", "PLAINTEXT", "a:1"),
    ],
)
def test_a_link_carries_the_name_of_the_security_profile(
    bootstrap: str, profile: str | None, found: str
) -> None:
    given = {"kafka.bootstrap.servers": bootstrap} | ({} if profile is None else {"securityProfile": profile})
    assert ClusterConnection.of(options(**given)).bootstrap == found


def test_two_security_profiles_are_refused() -> None:
    given = {"kafka.bootstrap.servers": "test://a:1", "securityProfile": "production"}
    with pytest.raises(BadOption, match="names the security profile 'test', and securityProfile is"):
        ClusterConnection.of(options(**given))


def test_a_refused_secret_is_not_repeated() -> None:
    with pytest.raises(BadOption) as refusal:
        settings(**{"kafka.ssl.key.password": "my secret"})
    assert "my secret" not in str(refusal.value)


def test_topics_are_named_with_commas_between() -> None:
    assert Subscription.of(options(subscribe="a, b,a")).topics == ("a", "b")
    with pytest.raises(BadOption, match="commas"):
        Subscription.of(options(subscribe="a,,b"))


def test_a_pattern_covers_whole_names() -> None:
    subscription = Subscription.of(options(subscribePattern="order.*"))
    assert subscription.covers(TopicPartition("orders", 0))
    assert not subscription.covers(TopicPartition("reorders", 0))
    with pytest.raises(BadOption, match="not a regular expression"):
        Subscription.of(options(subscribePattern="order("))


def test_assigned_partitions_are_read_from_json() -> None:
    subscription = Subscription.of(options(assign='{"orders": [1, 0]}'))
    assert subscription.assigned == (TopicPartition("orders", 0), TopicPartition("orders", 1))
    with pytest.raises(BadOption, match="not JSON of the form"):
        Subscription.of(options(assign='{"orders": 1}'))


def test_positions_go_to_json_and_back() -> None:
    positions = {TopicPartition("b", 10): 7, TopicPartition("b", 9): 1, TopicPartition("a", 0): 3}
    assert read_journal(write_journal(positions)) == positions
    assert list(write_journal(positions)["b"]) == ["9", "10"]
    with pytest.raises(BadOption, match="not JSON of the form"):
        read_positions("startingOffsets", "erliest")


def test_a_time_wins_over_positions() -> None:
    bound = Bound.starting(options(startingTimestamp="5", startingOffsets="latest"), default="earliest")
    assert (bound.option, bound.time_ms) == ("startingTimestamp", 5)


def test_a_batch_cannot_end_at_the_beginning() -> None:
    with pytest.raises(BadOption, match="cannot be earliest"):
        Bound.ending(options(endingOffsets='{"orders": {"0": -2}}'))


def test_durations_have_units() -> None:
    assert read_duration_s("maxTriggerDelay", "500ms") == 0.5
    with pytest.raises(BadOption, match="for example 30s"):
        read_duration_s("maxTriggerDelay", "soon")
