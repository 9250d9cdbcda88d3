"""Transaction APIs over the wire, in every version, with the error codes of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.testing import EmbeddedBroker
from tests.broker.wire_client import INIT_PRODUCER_ID, PRODUCE, WireClient, batch_of

ADD_PARTITIONS, ADD_OFFSETS, END_TXN, WRITE_MARKERS, OFFSET_COMMIT = 24, 25, 26, 27, 28
OFFSET_FETCH, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 9, 61, 65, 66
TRANSACTIONAL = 0x10
NONE = ErrorCode.none


@dataclass
class Producer:
    """A transactional producer with full control over its requests."""

    wire: WireClient
    name: str = "t"
    id: int = -1
    epoch: int = -1
    sequence: int = 0

    def initialize(self, version: int = 4, **fields: Any) -> ErrorCode:
        request = {"transactional_id": self.name, "transaction_timeout": 60_000}
        answer = self.wire.ask(INIT_PRODUCER_ID, version, **(request | fields))
        if answer.error_code is NONE:
            self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return ErrorCode(answer.error_code)

    @property
    def identity(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}

    def add(self, *partitions: int, version: int = 3, topic: str = "orders") -> list[ErrorCode]:
        topics = [{"name": topic, "partitions": partitions}]
        if version < 4:
            fields = {f"v3_and_below_{name}": value for name, value in self.identity.items()}
            answer = self.wire.ask(ADD_PARTITIONS, version, **fields, v3_and_below_topics=topics)
            return codes_of(answer.results_by_topic_v3_and_below)
        return self.add_batched(topics, version, verify_only=False)

    def add_batched(self, topics: list[Any], version: int, *, verify_only: bool) -> list[ErrorCode]:
        transaction = self.identity | {"topics": topics, "verify_only": verify_only}
        answer = self.wire.ask(ADD_PARTITIONS, version, transactions=[transaction])
        assert answer.error_code is NONE
        assert answer.results_by_transaction[0].transactional_id == self.name
        return codes_of(answer.results_by_transaction[0].topic_results)

    def produce(self, partition: int = 0, *, version: int = 9) -> ErrorCode:
        batch = batch_of(
            b"v",
            attributes=TRANSACTIONAL,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        )
        answer = self.wire.produce("orders", batch, partition, version=version, transactional_id=self.name)
        return ErrorCode(answer.error_code)

    def end(self, *, committed: bool = True, version: int = 3) -> Any:
        return self.wire.ask(END_TXN, version, **self.identity, committed=committed)

    def add_offsets(self, version: int = 3) -> ErrorCode:
        answer = self.wire.ask(ADD_OFFSETS, version, **self.identity, group_id="g")
        return ErrorCode(answer.error_code)

    def commit_offset(
        self, offset: int, version: int = 3, *, partition: int = 0, metadata: str | None = None
    ) -> ErrorCode:
        sent = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        topics = [{"name": "orders", "partitions": [sent]}]
        answer = self.wire.ask(OFFSET_COMMIT, version, **self.identity, group_id="g", topics=topics)
        return ErrorCode(answer.topics[0].partitions[0].error_code)


def codes_of(topics: Any) -> list[ErrorCode]:
    return [ErrorCode(found.partition_error_code) for topic in topics for found in topic.results_by_partition]


@pytest.fixture
def wire(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as wire:
        wire.create_topic("orders", 2)
        yield wire


@pytest.fixture
def producer(wire: WireClient) -> Producer:
    producer = Producer(wire)
    assert producer.initialize() is NONE
    return producer


def fence(producer: Producer) -> None:
    """Initialize a newer producer with the same transactional id."""
    assert Producer(producer.wire, producer.name).initialize() is NONE


# InitProducerId


@pytest.mark.parametrize("version", range(6))
def test_every_version_allocates_producer_ids(wire: WireClient, version: int) -> None:
    idempotent, transactional = Producer(wire, name=None), Producer(wire)  # type: ignore[arg-type]  # null
    assert idempotent.initialize(version) is transactional.initialize(version) is NONE
    assert (idempotent.epoch, transactional.epoch) == (0, 0)
    assert idempotent.id != transactional.id
    assert transactional.initialize(version) is NONE
    assert transactional.epoch == 1


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.invalid_producer_epoch), (4, ErrorCode.producer_fenced)]
)
def test_a_fenced_producer_that_recovers_gets_the_error_of_its_version(
    producer: Producer, version: int, code: ErrorCode
) -> None:
    fence(producer)
    expected = {"producer_id": producer.id, "producer_epoch": producer.epoch}
    assert producer.initialize(version, **expected) is code


@pytest.mark.parametrize("expected", [{"producer_id": 5}, {"producer_epoch": 5}])
def test_a_producer_id_without_an_epoch_is_an_invalid_request(
    producer: Producer, expected: dict[str, int]
) -> None:
    assert producer.initialize(**expected) is ErrorCode.invalid_request


@pytest.mark.parametrize("timeout_ms", [0, 900_001])
def test_a_timeout_out_of_bounds_is_rejected(wire: WireClient, timeout_ms: int) -> None:
    code = Producer(wire).initialize(transaction_timeout=timeout_ms)
    assert code is ErrorCode.invalid_transaction_timeout


# AddPartitionsToTxn


@pytest.mark.parametrize("version", range(6))
def test_every_version_adds_partitions(producer: Producer, version: int) -> None:
    assert producer.add(0, 1, version=version) == [NONE, NONE]
    assert producer.produce(1) is NONE


@pytest.mark.parametrize("version", [3, 4])
def test_partitions_are_added_together_or_not_at_all(producer: Producer, version: int) -> None:
    codes = producer.add(0, 7, version=version)
    assert codes == [ErrorCode.operation_not_attempted, ErrorCode.unknown_topic_or_partition]
    assert producer.produce(0) is ErrorCode.invalid_txn_state


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.invalid_txn_state), (5, ErrorCode.transaction_abortable)]
)
def test_verification_returns_which_partitions_were_added(
    producer: Producer, version: int, code: ErrorCode
) -> None:
    producer.add(0)
    topics = [{"name": "orders", "partitions": [0, 1]}]
    assert producer.add_batched(topics, version, verify_only=True) == [NONE, code]


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.invalid_producer_epoch), (2, ErrorCode.producer_fenced)]
)
def test_a_fenced_producer_adds_nothing(producer: Producer, version: int, code: ErrorCode) -> None:
    fence(producer)
    assert producer.add(0, version=version) == [code]


# Produce


@pytest.mark.parametrize(("version", "code"), [(9, 48), (10, 48), (11, 120), (12, 0)])
def test_a_write_to_a_partition_that_was_not_added(producer: Producer, version: int, code: int) -> None:
    assert producer.produce(version=version) == code


def test_a_fenced_producer_writes_nothing(producer: Producer) -> None:
    producer.add(0)
    assert producer.produce(0) is NONE
    fence(producer)
    assert producer.produce(0) is producer.produce(1) is ErrorCode.invalid_producer_epoch


# EndTxn


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_every_version_ends_a_transaction_and_may_be_repeated(
    producer: Producer, version: int, committed: bool
) -> None:
    producer.add(0)
    producer.produce()
    first = producer.end(committed=committed, version=version)
    again = producer.end(committed=committed, version=version)
    assert first.error_code is again.error_code is NONE
    if version == 5:
        assert (first.producer_id, first.producer_epoch) == (producer.id, producer.epoch + 1)
        assert (again.producer_id, again.producer_epoch) == (producer.id, producer.epoch + 1)


@pytest.mark.parametrize("version", [3, 5])
def test_a_commit_without_partitions_is_rejected(producer: Producer, version: int) -> None:
    assert producer.end(version=version).error_code is ErrorCode.invalid_txn_state


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.invalid_producer_epoch), (2, ErrorCode.producer_fenced)]
)
def test_a_fenced_producer_commits_nothing(producer: Producer, version: int, code: ErrorCode) -> None:
    producer.add(0)
    fence(producer)
    assert producer.end(version=version).error_code is code


def test_after_an_end_with_a_new_epoch_the_old_one_is_rejected_everywhere(producer: Producer) -> None:
    producer.add(0)
    producer.produce()
    producer.end(version=5)
    assert producer.produce() is ErrorCode.invalid_producer_epoch
    assert producer.add(0) == [ErrorCode.producer_fenced]
    assert producer.add_offsets() is ErrorCode.producer_fenced
    assert producer.commit_offset(1, version=5) is ErrorCode.invalid_producer_epoch


# Offsets


def committed_offset(wire: WireClient) -> tuple[int, ErrorCode]:
    group = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}
    answer = wire.ask(OFFSET_FETCH, 8, groups=[group], require_stable=True)
    found = answer.groups[0].topics[0].partitions[0]
    return found.committed_offset, ErrorCode(found.error_code)


@pytest.mark.parametrize("version", range(5))
def test_offsets_are_committed_with_the_transaction(producer: Producer, version: int) -> None:
    assert producer.add_offsets(version) is NONE
    assert producer.commit_offset(41, version) is NONE
    assert committed_offset(producer.wire) == (-1, ErrorCode.unstable_offset_commit)
    producer.end()
    assert committed_offset(producer.wire) == (41, NONE)


def test_offsets_of_an_aborted_transaction_are_dropped(producer: Producer) -> None:
    producer.add_offsets()
    producer.commit_offset(41)
    producer.end(committed=False)
    assert committed_offset(producer.wire) == (-1, NONE)


def test_version_5_of_txn_offset_commit_adds_the_partition(producer: Producer) -> None:
    assert producer.commit_offset(41, version=5) is NONE
    producer.end(version=5)
    assert committed_offset(producer.wire) == (41, NONE)


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.invalid_txn_state), (4, ErrorCode.transaction_abortable)]
)
def test_offsets_that_were_not_added_are_rejected(producer: Producer, version: int, code: ErrorCode) -> None:
    assert producer.commit_offset(41, version) is code


def test_offsets_of_unknown_partitions_are_rejected(producer: Producer) -> None:
    producer.add_offsets()
    assert producer.commit_offset(41, partition=9) is ErrorCode.unknown_topic_or_partition
    assert producer.commit_offset(41, metadata="x" * 5000) is ErrorCode.offset_metadata_too_large


def test_a_fenced_producer_commits_no_offsets(producer: Producer) -> None:
    producer.add_offsets()
    fence(producer)
    assert producer.commit_offset(41) is ErrorCode.invalid_producer_epoch


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.invalid_producer_epoch), (2, ErrorCode.producer_fenced)]
)
def test_a_fenced_producer_adds_no_offsets(producer: Producer, version: int, code: ErrorCode) -> None:
    fence(producer)
    assert producer.add_offsets(version) is code


# What operators see


def test_an_ongoing_transaction_is_described(producer: Producer) -> None:
    producer.add(0, 1)
    (known,) = producer.wire.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=["t"]).transaction_states
    assert (known.error_code, known.transaction_state) == (NONE, "Ongoing")
    assert (known.producer_id, known.producer_epoch) == (producer.id, producer.epoch)
    assert [(topic.topic, topic.partitions) for topic in known.topics] == [("orders", (0, 1))]


def test_an_unknown_transactional_id_is_not_found(wire: WireClient) -> None:
    states = wire.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=["who", ""]).transaction_states
    codes = [known.error_code for known in states]
    assert codes == [ErrorCode.transactional_id_not_found, ErrorCode.invalid_request]


def listed(wire: WireClient, version: int = 2, **filters: Any) -> list[tuple[str, str]]:
    request = {"state_filters": (), "producer_id_filters": ()} | filters
    answer = wire.ask(LIST_TRANSACTIONS, version, **request)
    assert answer.error_code is NONE
    return sorted((known.transactional_id, known.transaction_state) for known in answer.transaction_states)


def test_transactions_are_listed_and_filtered(producer: Producer) -> None:
    wire, other = producer.wire, Producer(producer.wire, "other")
    other.initialize()
    producer.add(0)
    both = [("other", "Empty"), ("t", "Ongoing")]
    assert listed(wire, 0) == listed(wire, 1) == listed(wire) == both
    assert listed(wire, state_filters=["Ongoing"]) == both[1:]
    assert listed(wire, producer_id_filters=[other.id]) == both[:1]
    assert listed(wire, transactional_id_pattern="o.*") == both[:1]
    assert listed(wire, transactional_id_pattern="the") == []
    assert listed(wire, duration_filter=3_600_000, state_filters=["Ongoing"]) == []


def test_an_unknown_state_filter_is_returned(producer: Producer) -> None:
    answer = producer.wire.ask(LIST_TRANSACTIONS, 0, state_filters=["Sleeping"], producer_id_filters=())
    assert answer.unknown_state_filters == ("Sleeping",)
    assert answer.transaction_states == ()


def test_a_write_to_many_partitions_adds_them_with_one_record_of_the_state_log(wire: WireClient) -> None:
    wire.create_topic("wide", partitions=50)
    answer = wire.ask(
        INIT_PRODUCER_ID,
        3,
        transactional_id="t",
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    batch = batch_of(
        b"tea",
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    before = wire.end_offset("__transaction_state")
    data = [{"index": index, "records": batch} for index in range(50)]
    topics = [{"name": "wide", "partition_data": data}]
    produced = wire.ask(0, 12, transactional_id="t", acks=-1, timeout=1000, topic_data=topics)
    assert {each.error_code for each in produced.responses[0].partition_responses} == {NONE}
    assert wire.end_offset("__transaction_state") == before + 1


@pytest.mark.parametrize("pattern", ["(?=t)t", r"(t)\1", "(", "a{2000}", "x" * 300])
def test_a_pattern_without_a_linear_match_is_refused(wire: WireClient, pattern: str) -> None:
    request = {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": pattern}
    answer = wire.ask(LIST_TRANSACTIONS, 2, **request)
    assert answer.error_code is ErrorCode.invalid_regular_expression


def open_offsets(wire: WireClient, partition: int = 0) -> list[int]:
    topics = [{"name": "orders", "partition_indexes": [partition]}]
    (found,) = wire.ask(DESCRIBE_PRODUCERS, 0, topics=topics).topics[0].partitions
    assert found.error_code is NONE
    return [active.current_txn_start_offset for active in found.active_producers]


def test_the_producers_of_a_partition_are_described(producer: Producer) -> None:
    assert open_offsets(producer.wire) == []
    producer.add(0)
    producer.produce()
    assert open_offsets(producer.wire) == [0]
    producer.end()
    assert open_offsets(producer.wire) == [-1]


def test_the_producers_of_an_unknown_partition_are_not_described(wire: WireClient) -> None:
    topics = [{"name": "orders", "partition_indexes": [9]}, {"name": "none", "partition_indexes": [0]}]
    answer = wire.ask(DESCRIBE_PRODUCERS, 0, topics=topics)
    codes = [found.error_code for topic in answer.topics for found in topic.partitions]
    assert codes == [ErrorCode.unknown_topic_or_partition] * 2


def mark(producer: Producer, *partitions: int, committed: bool = False, version: int = 1) -> list[ErrorCode]:
    marker = {
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "transaction_result": committed,
        "topics": [{"name": "orders", "partition_indexes": partitions}],
        "coordinator_epoch": 0,
    }
    answer = producer.wire.ask(WRITE_MARKERS, version, markers=[marker])
    (found,) = answer.markers
    assert found.producer_id == producer.id
    return [ErrorCode(part.error_code) for topic in found.topics for part in topic.partitions]


@pytest.mark.parametrize("version", [1, 2])
def test_an_operator_aborts_a_transaction_by_its_partition(producer: Producer, version: int) -> None:
    producer.add(0, 1)
    producer.produce(0)
    producer.produce(1)
    assert mark(producer, 0, version=version) == [NONE]
    assert open_offsets(producer.wire, 0) == open_offsets(producer.wire, 1) == [-1]
    assert producer.end().error_code is ErrorCode.producer_fenced


def test_an_operator_cannot_commit_or_write_markers_to_unknown_partitions(producer: Producer) -> None:
    producer.add(0)
    producer.produce(0)
    assert mark(producer, 0, committed=True) == [ErrorCode.cluster_authorization_failed]
    assert mark(producer, 9) == [ErrorCode.unknown_topic_or_partition]
    assert open_offsets(producer.wire) == [0]


def test_an_abort_with_an_older_epoch_is_rejected(producer: Producer) -> None:
    older = Producer(producer.wire, producer.name, producer.id, producer.epoch)
    producer.initialize()
    producer.add(0)
    producer.produce(0)
    assert mark(older, 0) == [ErrorCode.invalid_producer_epoch]
    assert producer.end().error_code is NONE


def test_a_write_without_a_transactional_id_is_rejected(producer: Producer) -> None:
    batch = batch_of(
        b"v", attributes=TRANSACTIONAL, producer_id=producer.id, producer_epoch=0, base_sequence=0
    )
    data = {"name": "orders", "partition_data": [{"index": 0, "records": batch}]}
    answer = producer.wire.ask(PRODUCE, 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=[data])
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.invalid_request
