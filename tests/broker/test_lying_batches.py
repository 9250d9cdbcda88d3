"""Record batches that are not what they say: refused with the right code, and nothing is stored."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from headrace.protocol.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from headrace.protocol.compression import GZIP, NONE, ZSTD, compress
from headrace.protocol.records import NewRecord, build_batch, encode_batch, encode_records
from tests.broker.processes import BrokerProcess
from tests.broker.wire_client import LIST_OFFSETS, WireClient, batch_of
from tests.protocol.entities import INT32_MAX

MEGABYTE = 2**20
TIMESTAMP = 1_700_000_000_000
BATCH = batch_of(b"tea", b"cup")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for the whole module."""
    with BrokerProcess(tmp_path_factory.mktemp("lies") / "data") as kafka:
        yield kafka
        assert "Traceback" not in kafka.errors, kafka.errors[-4000:]


@pytest.fixture
def client(kafka: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(kafka.address) as client:
        client.create_topic("steady")
        client.create_topic("keyed", cleanup_policy="compact")
        yield client


def lying(records: bytes | None = None, count: int = 2, **fields: int) -> bytes:
    """A batch with a true checksum around untrue fields."""
    section = (
        encode_records([NewRecord(b"k", b"v", TIMESTAMP)] * 2, TIMESTAMP) if records is None else records
    )
    return bytes(build_batch(section, count, base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP, **fields))


def damaged(position: int, layout: str, value: int) -> bytes:
    """A batch in which one field of the header was changed, and its checksum was not."""
    batch = bytearray(BATCH)
    struct.pack_into(layout, batch, position, value)
    return bytes(batch)


LIES = {
    "no batch": (b"", ErrorCode.invalid_record),
    "less than a header": (BATCH[:60], ErrorCode.invalid_record),
    "cut short": (BATCH[:-1], ErrorCode.corrupt_message),
    "bytes after it": (BATCH + b"more", ErrorCode.corrupt_message),
    "two batches": (BATCH + BATCH, ErrorCode.corrupt_message),
    "a length of 2 GB": (damaged(8, ">i", INT32_MAX), ErrorCode.corrupt_message),
    "a negative length": (damaged(8, ">i", -1), ErrorCode.corrupt_message),
    "an old format": (damaged(16, ">b", 1), ErrorCode.corrupt_message),
    "a format to come": (damaged(16, ">b", 3), ErrorCode.corrupt_message),
    "a false checksum": (damaged(17, ">I", 1), ErrorCode.corrupt_message),
    "a flipped bit": (BATCH[:-1] + bytes([BATCH[-1] ^ 1]), ErrorCode.corrupt_message),
    "no records": (lying(b"", 0), ErrorCode.invalid_record),
    "a negative count": (lying(count=-3), ErrorCode.invalid_record),
    "a count that is not its range": (lying(last_offset_delta=99), ErrorCode.invalid_record),
    "a range that goes back": (lying(last_offset_delta=-5), ErrorCode.invalid_record),
    "more records than it has bytes for": (lying(count=3), ErrorCode.invalid_record),
    "2³¹ records in a byte": (lying(b"x", INT32_MAX), ErrorCode.invalid_record),
    "2³¹ records in zstd": (lying(bytes(40), INT32_MAX, attributes=ZSTD), ErrorCode.invalid_record),
    "a control batch": (lying(attributes=CONTROL), ErrorCode.invalid_record),
    "a control batch of a transaction": (
        lying(attributes=CONTROL | TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0),
        ErrorCode.invalid_request,
    ),
    "a transaction without a producer": (lying(attributes=TRANSACTIONAL), ErrorCode.invalid_request),
    "a producer without a sequence": (lying(producer_id=9, producer_epoch=0), ErrorCode.invalid_record),
    "a codec that does not exist": (lying(attributes=7), ErrorCode.invalid_record),
    "the broker's time from a client": (lying(attributes=LOG_APPEND_TIME), ErrorCode.invalid_timestamp),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_batch_that_lies_is_refused_and_nothing_is_stored(client: WireClient, lie: str) -> None:
    batch, code = LIES[lie]
    before = client.end_offset("steady")
    assert client.produce("steady", batch).error_code is code
    assert client.end_offset("steady") == before


def records_of(*bodies: bytes) -> bytes:
    """A records section of these bodies, each behind its length."""
    return b"".join(bytes([2 * len(body)]) + body for body in bodies)


KEYED_LIES = {
    "more records than it counts": lying(records_of(b"\0\0\0\2k\2v\0", b"\0\0\2\2k\2v\0"), 1),
    "fewer records than it counts": lying(records_of(b"\0\0\0\2k\2v\0"), 2),
    "a record longer than its batch": lying(b"\x7e\0\0\0\2k\2v\0", 1),
    "a key longer than its record": lying(records_of(b"\0\0\0\x7ek\2v\0"), 1),
    "records that are numbered twice": lying(records_of(b"\0\0\0\2k\2v\0", b"\0\0\0\2k\2v\0"), 2),
    "a compression that is none": lying(b"this is not gzip at all", 1, attributes=GZIP),
    "a bomb in gzip": lying(compress(GZIP, bytes(300 * MEGABYTE)), 1, attributes=GZIP),
    "a bomb in zstd": lying(compress(ZSTD, bytes(300 * MEGABYTE)), 1, attributes=ZSTD),
}


@pytest.mark.parametrize("lie", KEYED_LIES)
def test_a_compacted_topic_refuses_batches_whose_records_are_not_what_the_header_says(
    kafka: BrokerProcess, client: WireClient, lie: str
) -> None:
    kafka.reset_peak()
    before, memory = client.end_offset("keyed"), kafka.resident_bytes
    code = client.produce("keyed", KEYED_LIES[lie]).error_code
    assert code in (ErrorCode.corrupt_message, ErrorCode.invalid_record)
    assert client.end_offset("keyed") == before
    assert kafka.peak_bytes - memory < 300 * MEGABYTE


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(client: WireClient) -> None:
    assert client.produce("keyed", BATCH).error_code is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_a_compacted_topic_names_the_records_without_a_key(client: WireClient, codec: int) -> None:
    records = [NewRecord(b"k", b"v", TIMESTAMP), NewRecord(None, b"v", TIMESTAMP)] * 2
    answer = client.produce("keyed", bytes(encode_batch(records, codec=codec)))
    assert answer.error_code is ErrorCode.invalid_record
    assert [each.batch_index for each in answer.record_errors] == [1, 3]
    assert "without key in topic partition keyed-0" in answer.record_errors[0].batch_index_error_message


def test_batches_for_a_compacted_topic_are_stored_in_the_order_in_which_they_came(client: WireClient) -> None:
    """A large batch is validated in a thread: later batches, compressed or not, wait for it."""
    client.create_topic("ordered", cleanup_policy="compact")
    many = bytes(encode_batch([NewRecord(b"k", b"v", TIMESTAMP)] * 50_000, codec=ZSTD))
    one = batch_of(b"v", key=b"k")
    for batch in (many, one, many, one):
        client.send_produce("ordered", batch)
    offsets = [client.receive().responses[0].partition_responses[0].base_offset for _ in range(4)]
    assert offsets == [0, 50_000, 50_001, 100_001]


def test_a_batch_that_cannot_be_opened_is_found_by_the_time_of_its_header(client: WireClient) -> None:
    client.create_topic("lies")
    batch = build_batch(b"no records at all", 1, base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP + 10)
    assert client.produce("lies", bytes(batch)).error_code is ErrorCode.none
    wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": TIMESTAMP + 5}
    topics = [{"name": "lies", "partitions": [wanted]}]
    (topic,) = client.ask(LIST_OFFSETS, 6, replica_id=-1, isolation_level=0, topics=topics).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].offset) == (ErrorCode.none, 0)


def test_refused_batches_leave_nothing_for_a_restart_to_find(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        with WireClient(kafka.address) as client:
            client.create_topic("steady")
            for batch, _ in LIES.values():
                client.produce("steady", batch)
            client.produce("steady", BATCH)
        kafka.restart()
        with WireClient(kafka.address) as client:
            assert client.end_offset("steady") == 2
