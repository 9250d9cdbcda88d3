"""Share groups do not block the event loop, and need no memory when they are idle."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import pytest

from headrace.broker.shares.batch_cache import CACHE_BYTES, IDLE_MS, INLINE_BYTES, BatchCache
from headrace.broker.shares.dead_letters import MAX_DEAD_LETTERS
from headrace.broker.shares.reader import MAX_PARSED_RECORDS
from headrace.protocol.batch import place_batch
from headrace.protocol.compression import ZSTD
from headrace.protocol.decompressed_batch import DecompressedBatch
from headrace.protocol.records import NewRecord, encode_batch
from headrace.testing.embedded import EmbeddedBroker
from tests.broker.shares.test_handlers import EARLIEST, Member, configure
from tests.broker.virtual_clock import VirtualClock
from tests.broker.wire_client import METADATA, WireClient

if TYPE_CHECKING:
    from headrace.storage.log import Log

MANY = 20_000


@pytest.fixture
def member(headrace_broker: EmbeddedBroker) -> Iterator[Member]:
    """A member of a group on one batch of many records."""
    with WireClient(headrace_broker.bootstrap) as client:
        yield join(client)


def join(client: WireClient) -> Member:
    client.create_topic("many", retention_ms="-1")
    records = [NewRecord(None, b"%d" % number, 1_700_000_000_000) for number in range(MANY)]
    client.produce("many", bytes(encode_batch(records, codec=ZSTD)))
    configure(client, **EARLIEST)
    topics = [{"topic_id": None, "name": "many"}]
    asked = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    (topic,) = client.ask(METADATA, 12, topics=topics, **asked).topics
    member = Member(client, topic.topic_id)
    member.heartbeat(0, "many")
    return member


def test_each_turn_parses_and_archives_a_bounded_number_of_records(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 records of a large batch are rejected."""
    found: list[int] = []
    find = DecompressedBatch.find

    def count(self: DecompressedBatch, records: int) -> int:
        found.append(find(self, records))
        return found[-1]

    monkeypatch.setattr(DecompressedBatch, "find", count)
    taken = member.take(2_000)
    while not taken:
        taken = member.take(2_000)
    (first, last, _), *_ = taken
    member.acknowledge({(first, last): 3})
    letters = set[int]()
    while not letters or max(letters) < last - first + 1:
        letters.add(member.client.end_offset("many.mailer.dead"))
    assert max(found) <= MAX_PARSED_RECORDS
    assert sum(found) < 2 * MANY  # opened once for the members, and not again for each letter
    # Another client saw letters come in parts: it was answered between them.
    assert len(letters) > 2
    assert all(count % MAX_DEAD_LETTERS == 0 for count in letters)


def batch_at(offset: int, size: int) -> bytes:
    batch = encode_batch([NewRecord(None, bytes(size), 0)])
    place_batch(batch, offset, 0)
    return bytes(batch)


def test_the_cache_of_open_batches_is_bounded_and_emptied_when_idle() -> None:
    clock, log = VirtualClock(), cast("Log", object())
    with ThreadPoolExecutor(1) as opener:
        cache = BatchCache(clock, opener)
        for offset in range(100):
            cache.open(log, batch_at(offset, 1 << 20), lambda _: None)
        assert len(cache) <= CACHE_BYTES >> 20
        assert cache.get(log, 99) is not None
        assert cache.get(log, 0) is None
        clock.advance(2 * IDLE_MS)
        assert len(cache) == 0


async def test_batches_that_may_be_large_are_decompressed_in_a_thread() -> None:
    clock, log = VirtualClock(), cast("Log", object())
    small = bytes(encode_batch([NewRecord(None, b"v", 0)], codec=ZSTD))
    bomb = bytearray(encode_batch([NewRecord(None, bytes(10 * INLINE_BYTES), 0)], codec=ZSTD))
    place_batch(bomb, 7, 0)
    with ThreadPoolExecutor(1) as opener:
        cache = BatchCache(clock, opener)
        opened = asyncio.Event()
        assert cache.open(log, small, lambda _: None) is not None
        assert cache.open(log, bytes(bomb), lambda _: opened.set()) is None
        await opened.wait()
        assert cache.get(log, 7) is not None
