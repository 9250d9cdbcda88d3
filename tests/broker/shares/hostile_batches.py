"""Record batches with a valid checksum and corrupt records, sent among valid ones."""

import random
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta

from kio.schema.errors import ErrorCode

from headrace import queue
from headrace.broker.shares.dead_letters import dead_letter_topic
from headrace.protocol.batch import build_batch
from headrace.protocol.compression import CODECS, compress
from headrace.protocol.records import NewRecord, encode_records
from headrace.queues import Message
from tests.broker.processes import DEADLINE_SECONDS, BrokerProcess
from tests.broker.wire_client import WireClient, batch_of

MEGABYTE = 2**20
TIMESTAMP = 1_700_000_000_000
IDLE = timedelta(seconds=1.5)
NUMBERS = (
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80",
    b"\xff" * 9 + b"\x01",
    b"\x01",
    b"\x03",
    b"\x7f",
    b"\x00",
)
"""Varints that replace lengths: huge, negative, unterminated, null."""


def mutate(chance: random.Random, section: bytes) -> bytes:
    """An almost valid records section."""
    data = bytearray(section)
    for _ in range(chance.choice([1, 1, 2, 8])):
        if not data:
            break
        at = chance.randrange(len(data))
        act = chance.randrange(5)
        if act == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif act == 1:
            del data[at]
        elif act == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 9))
        elif act == 3:
            data[at : at + 1] = chance.choice(NUMBERS)
        else:
            data[at:at] = data[: chance.randint(1, 60)]
    return bytes(data)


def hostile_batch(chance: random.Random) -> bytes:
    """A batch with arbitrary records, which a broker may store or reject."""
    records = [
        NewRecord(
            chance.choice([None, b"", b"key"]),
            chance.choice([None, b"", chance.randbytes(chance.randrange(200))]),
            TIMESTAMP + chance.choice([0, 1, -5, 10**6]),
            chance.choice([(), (("headrace-delay-ms", b"9"),), (("headrace-group", b"x"),), (("", None),)]),
        )
        for _ in range(chance.randrange(1, 9))
    ]
    section = mutate(chance, encode_records(records, TIMESTAMP))
    count = len(records)
    if chance.random() < 0.2:
        count = chance.choice([0, -1, count + 1, len(section) // 7, len(section) // 7 + 1, 2**31 - 1])
    codec = chance.choice([*CODECS, 0, 0])
    packed = compress(codec, section)
    if chance.random() < 0.1:
        packed = mutate(chance, packed)
    return bytes(
        build_batch(
            packed, count, base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP + 10**6, attributes=codec
        )
    )


def besiege(broker: BrokerProcess, *, rounds: int, seed: int) -> None:
    """Send corrupt batches among valid ones; valid ones are delivered, corrupt ones archived."""
    chance = random.Random(seed)
    topic, sent = f"siege-{seed}", list[bytes]()
    with WireClient(broker.address) as client:
        client.create_topic(topic, retention_ms="-1")
        for number in range(rounds):
            sent.append(b"good-%d" % number)
            assert client.produce(topic, batch_of(sent[-1])).error_code is ErrorCode.none
            for _ in range(chance.randint(1, 4)):
                client.produce(topic, hostile_batch(chance))
        settings = {"headrace.key.order": chance.choice(["true", "false"])}
        worker = queue(
            topic,
            group="g",
            broker=broker.address,
            idle_timeout=IDLE,
            prefetch=chance.choice([1, 7, 500]),
            settings=settings,
        )
        taken = take_all(worker, sent)
        assert missing(sent, taken) == [], f"seed {seed}: {missing(sent, taken)}"
        # The nonsense is in the dead-letter topic, and the queue has nothing left to do.
        assert client.end_offset(dead_letter_topic(topic, "g")) > 0
        assert list(worker) == []
    assert broker.peak_bytes < 400 * MEGABYTE


def take_all(worker: Iterable[Message], sent: Sequence[bytes]) -> list[bytes]:
    """The values of a queue until it is empty; on a busy machine it may seem to be before it is."""
    taken, deadline = list[bytes](), time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        more = [message.value or b"" for message in worker]
        if more:
            taken += more
            deadline = time.monotonic() + DEADLINE_SECONDS
        elif set(sent) <= set(taken):
            break
    return taken


def missing(sent: Sequence[bytes], taken: Sequence[bytes]) -> list[bytes]:
    """The messages that were lost or delivered twice."""
    return [value for value in sent if taken.count(value) != 1]
