"""Batches that are written in steps: whole, in order, and not in the way of others."""

import uuid
from collections.abc import Iterator

import pytest

from headrace.protocol.batch import CHECKSUM_STEP_BYTES, split_batches
from headrace.protocol.records import decode_batch
from tests.broker.overflow_topics import commit
from tests.broker.processes import BrokerProcess
from tests.broker.wire_client import WireClient, batch_of

SIZE = CHECKSUM_STEP_BYTES + 4 * 2**20
MEMORY_BYTES = 10 * SIZE
SETTINGS = {
    "disk": {"retention_ms": "-1"},
    "memory": {"headrace_storage": "memory", "retention_bytes": str(MEMORY_BYTES)},
    "compacted": {"cleanup_policy": "compact"},
    "validated": {"cleanup_policy": "compact"},
}
RECORDS = {"validated": 1024}
"""Records of a large batch, if their keys are to be validated in a thread."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("large") / "data"
    with BrokerProcess(folder, "--memory-topics-bytes", str(10 * MEMORY_BYTES)) as kafka:
        yield kafka
        assert "Traceback" not in kafka.errors, kafka.errors[-4000:]


class Topic:
    """A topic that takes large batches."""

    def __init__(self, client: WireClient, kind: str) -> None:
        self.client = client
        self.name = f"{kind}-{uuid.uuid4().hex}"
        count = RECORDS.get(kind, 1)
        self.large = batch_of(*[b"L" * (SIZE // count)] * count, key=b"L")
        created = client.create_topic(self.name, max_message_bytes=str(2 * SIZE), **SETTINGS[kind])
        assert created.error_code == 0

    def sizes(self) -> dict[bytes | None, list[int]]:
        """By key, the bytes of all values in each stored batch."""
        sizes: dict[bytes | None, list[int]] = {}
        for key, values in self.batches():
            sizes.setdefault(key, []).append(sum(map(len, values)))
        return sizes

    def batches(self) -> Iterator[tuple[bytes | None, list[bytes]]]:
        """The key and the values of each stored batch."""
        offset, end = 0, self.client.end_offset(self.name)
        while offset < end:
            answer = self.client.fetch({(self.name, 0): offset}, partition_bytes=2**30)
            for batch in split_batches(memoryview(answer.responses[0].partitions[0].records)):
                records = list(decode_batch(batch))
                offset = records[-1].offset + 1
                yield records[0].key, [record.value or b"" for record in records]


@pytest.fixture(params=SETTINGS)
def topic(kafka: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Topic]:
    with WireClient(kafka.address) as client:
        yield Topic(client, request.param)


def small_batch(number: int) -> bytes:
    return batch_of(b"small", key=b"%d" % number)


def test_batches_of_others_are_stored_whole_before_or_after_a_large_one(
    kafka: BrokerProcess, topic: Topic
) -> None:
    with WireClient(kafka.address) as other:
        topic.client.send_produce(topic.name, topic.large)
        answers = [other.produce(topic.name, small_batch(number)).error_code for number in range(50)]
        assert topic.client.receive().responses[0].partition_responses[0].error_code == 0
    assert set(answers) == {0}
    assert topic.sizes() == {b"L": [SIZE]} | {b"%d" % number: [5] for number in range(50)}


def test_batches_of_one_connection_keep_their_order(topic: Topic) -> None:
    for batch in (small_batch(1), topic.large, small_batch(2)):
        topic.client.send_produce(topic.name, batch)
    for _ in range(3):
        topic.client.receive()
    assert [key for key, _ in topic.batches()] == [b"1", b"L", b"2"]


def test_a_client_that_leaves_in_the_middle_of_its_batch_blocks_nobody(
    kafka: BrokerProcess, topic: Topic
) -> None:
    for number in range(3):
        with WireClient(kafka.address) as leaving:
            leaving.send_produce(topic.name, topic.large)
        assert topic.client.produce(topic.name, small_batch(number)).error_code == 0
    small = {key: sizes for key, sizes in topic.sizes().items() if key != b"L"}
    assert small == {b"%d" % number: [5] for number in range(3)}


def test_a_large_batch_that_waits_for_room_holds_up_no_other(kafka: BrokerProcess) -> None:
    with WireClient(kafka.address) as waiting, WireClient(kafka.address) as client:
        full = f"full-{uuid.uuid4().hex}"
        bound = {"headrace_overflow": "block", "headrace_overflow_records": "1"}
        bound |= {"headrace_overflow_groups": "mailer", "headrace_overflow_timeout_ms": "300000"}
        waiting.create_topic(full, max_message_bytes=str(2 * SIZE), **bound)
        commit(kafka.address, full, "mailer", 0)
        waiting.produce(full, small_batch(1))
        topic = Topic(client, "disk")
        waiting.send_produce(full, topic.large)
        for _ in range(3):
            assert client.produce(topic.name, topic.large).error_code == 0
        assert not waiting.has_answer()
