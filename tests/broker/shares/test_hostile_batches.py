"""Corrupt batches in share groups: only the unreadable records become a dead letter."""

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from headrace import queue
from headrace.broker.shares.dead_letters import OFFSET, PARTITION, REASON, TOPIC
from headrace.protocol.batch import build_batch
from headrace.protocol.compression import GZIP, NONE, ZSTD, compress
from headrace.protocol.records import NewRecord, encode_batch, encode_records, encode_varint
from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.shares.hostile_batches import MEGABYTE, TIMESTAMP, besiege
from tests.broker.wire_client import WireClient, batch_of

IDLE = timedelta(seconds=2)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for the whole module."""
    with BrokerProcess(tmp_path_factory.mktemp("hostile") / "data") as kafka:
        yield kafka
        assert "Traceback" not in kafka.errors, kafka.errors[-4000:]


@pytest.fixture
def client(kafka: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(kafka.address) as client:
        yield client


def lying(section: bytes, count: int, codec: int = NONE) -> bytes:
    packed = compress(codec, section)
    return bytes(
        build_batch(packed, count, base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP, attributes=codec)
    )


def values(kafka: BrokerProcess, topic: str, prefetch: int = 1, group: str = "g") -> list[bytes | None]:
    return [
        message.value
        for message in queue(topic, group=group, broker=kafka.address, idle_timeout=IDLE, prefetch=prefetch)
    ]


@pytest.mark.parametrize("codec", [NONE, GZIP])
@pytest.mark.parametrize("prefetch", [1, 500])
def test_a_batch_that_cannot_be_read_is_a_dead_letter_and_its_neighbors_are_delivered(
    kafka: BrokerProcess, client: WireClient, codec: int, prefetch: int
) -> None:
    topic = f"jobs-{codec}-{prefetch}"
    client.create_topic(topic, retention_ms="-1")
    bad = lying(b"no records at all here", 2, codec)
    for batch in (batch_of(b"before"), bad, batch_of(b"after")):
        assert client.produce(topic, batch).error_code is ErrorCode.none
    assert values(kafka, topic, prefetch) == [b"before", b"after"]
    (letter,) = queue(f"{topic}.g.dead", group="clerk", broker=kafka.address, idle_timeout=IDLE)
    assert (letter.header(TOPIC), letter.header(PARTITION), letter.header(OFFSET)) == (
        topic.encode(),
        b"0",
        b"1",
    )
    assert (letter.header(REASON) or b"").startswith(b"Offsets 1 to 2 cannot be read: ")
    assert (letter.value or b"")[61:] == bad[61:]


def test_records_before_the_corruption_in_a_batch_are_delivered(
    kafka: BrokerProcess, client: WireClient
) -> None:
    client.create_topic("half", retention_ms="-1")
    good = encode_records([NewRecord(None, b"%d" % number, TIMESTAMP) for number in range(3)], TIMESTAMP)
    client.produce("half", lying(good + b"this is not a record, but it is long enough", 6))
    client.produce("half", batch_of(b"after"))
    assert values(kafka, "half") == [b"0", b"1", b"2", b"after"]
    assert client.end_offset("half.g.dead") == 1


def test_a_dead_letter_of_a_batch_is_written_once_across_restarts(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        with WireClient(kafka.address) as client:
            client.create_topic("jobs", retention_ms="-1")
            client.produce("jobs", batch_of(b"held"))
            client.produce("jobs", lying(b"no records at all here", 3))
            client.produce("jobs", batch_of(b"after"))
            taken = iter(queue("jobs", group="g", broker=kafka.address, prefetch=9))
            next(taken)  # it stays held, and keeps the start of the group where it is
            wait_until(lambda: client.end_offset("jobs.g.dead") == 1, "the letter to be written")
        kafka.restart()
        taken.close()  # type: ignore[attr-defined]  # a generator
        assert values(kafka, "jobs") == [b"held", b"after"]
        with WireClient(kafka.address) as client:
            assert client.end_offset("jobs.g.dead") == 1


def test_negative_record_lengths_cost_no_memory(kafka: BrokerProcess, client: WireClient) -> None:
    """1.6 KB of zstd made a broker that trusted these lengths grow from 36 to 624 MB."""
    client.create_topic("amplified", retention_ms="-1")
    kafka.reset_peak()
    before = kafka.resident_bytes
    size = 5 * MEGABYTE
    section = encode_varint(size) + bytes(size) + encode_varint(-size)
    assert client.produce("amplified", lying(section, 500, ZSTD)).error_code is ErrorCode.none
    assert values(kafka, "amplified", 250) == []
    assert client.end_offset("amplified.g.dead") == 1
    assert kafka.peak_bytes - before < 100 * MEGABYTE


def test_a_kilobyte_that_claims_a_million_records_is_one_dead_letter(
    kafka: BrokerProcess, client: WireClient
) -> None:
    client.create_topic("bomb", retention_ms="-1")
    record = encode_records([NewRecord(None, None, TIMESTAMP)], TIMESTAMP)
    # The second record has the number of the first: what follows the first cannot be read.
    client.produce("bomb", lying(record * 1_000_000, 1_000_000, ZSTD))
    client.produce("bomb", batch_of(b"after"))
    assert values(kafka, "bomb") == [None, b"after"]
    assert client.end_offset("bomb.g.dead") == 1


def test_each_of_thousands_of_rejected_records_becomes_one_dead_letter(
    kafka: BrokerProcess, client: WireClient
) -> None:
    client.create_topic("rejected", retention_ms="-1")
    client.produce("rejected", bytes(encode_batch([NewRecord(None, b"v", TIMESTAMP)] * 2_000, codec=ZSTD)))
    worker = queue("rejected", group="g", broker=kafka.address, prefetch=2_000, idle_timeout=IDLE)
    for message in worker:
        message.reject()
    wait_until(lambda: client.end_offset("rejected.g.dead") == 2_000, "all letters to be written")
    letters = queue("rejected.g.dead", group="clerk", broker=kafka.address, prefetch=500, idle_timeout=IDLE)
    assert sorted(int(letter.header(OFFSET) or b"") for letter in letters) == list(range(2_000))


def test_hostile_batches_do_not_stop_a_queue(kafka: BrokerProcess) -> None:
    besiege(kafka, rounds=60, seed=random.randrange(2**32))
