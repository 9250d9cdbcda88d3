"""No request keeps the event loop busy for long, whatever it asks: every API with its worst input.

What is measured is the processor time of the loop's thread in one callback; of several tries the best counts.
Even that grows when a neighbor uses the same core or the same caches, so that it is compared with the time
of a fixed piece of work, done right after it. An API without a worst case here fails the test.
"""

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace.broker import scheduling
from headrace.broker.apis import APIS
from headrace.broker.broker import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.metrics import LOG_SIZE, take_samples
from headrace.metrics import MetricsAddress, Scrape
from headrace.testing import EmbeddedBroker, broker
from tests.broker.wire_client import ConnectionEnded, WireClient, batch_of
from tests.broker.worst_requests import (
    HUGE_BATCH_BYTES,
    MEMBER,
    METADATA_FLAGS,
    WIDE,
    WORST,
    Case,
    broken_batch,
    large_batch,
    prepare,
    produce,
    queue_with,
    resource,
    share_fetch,
    share_partitions,
    topic_id,
)

LIMIT_SECONDS = 0.020
TRIES = 3
YARDSTICK_SECONDS = 0.0035
"""What `yardstick` takes on the machine for which the limit is meant, when nothing else runs there."""
ANSWER_SECONDS = 2.0
"""After this time a request that waits for records or members is left waiting."""


class BusyMeter:
    """The longest time that the loop's thread worked in one callback."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0

    def watch(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(handle: Any) -> None:
            before = time.thread_time()
            run(handle)
            self.longest_seconds = max(self.longest_seconds, time.thread_time() - before)

        return timed


@pytest.fixture(scope="module")
def meter() -> Iterator[BusyMeter]:
    """Every callback is measured; brokers run on asyncio's own loop, for uvloop does not let one look in."""
    meter = BusyMeter()
    thresholds = gc.get_threshold()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", meter.watch(asyncio.events.Handle._run))
        patch.setattr(uvloop, "new_event_loop", asyncio.new_event_loop)
        # As in a broker's process. The requests of this module are frozen too: such a process has none.
        scheduling.freeze_growth()
        yield meter
    gc.callbacks.remove(scheduling.freeze_survivors)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(scope="module")
def kafka(meter: BusyMeter) -> Iterator[EmbeddedBroker]:
    with broker(metrics=MetricsAddress(port=0)) as kafka, WireClient(kafka.bootstrap) as client:
        prepare(client)
        yield kafka
        # A clean stop syncs each partition that has records.
        client.ask(20, 5, topic_names=["wide"], timeout=60_000)


def pack(client: WireClient, api_key: int, case: Case) -> bytes:
    """A case as it goes over the wire, with the broker in the state that it needs."""
    version, fields = case
    return client.pack(api_key, version, **(fields(client) if callable(fields) else fields))


def yardstick() -> float:
    """The processor time of a fixed piece of work."""
    before = time.thread_time()
    encoded = {number: str(number).encode() for number in range(20_000)}
    assert len(encoded) == 20_000
    return time.thread_time() - before


def slowdown() -> float:
    """How much longer work takes now than on the quiet machine."""
    return max(1.0, min(yardstick() for _ in range(3)) / YARDSTICK_SECONDS)


def longest_pause(kafka: EmbeddedBroker, meter: BusyMeter, request: Callable[[WireClient], bytes]) -> float:
    """The longest callback of the loop until the broker answers or closes the connection; the best try."""
    pauses = []
    for _ in range(TRIES):
        with WireClient(kafka.bootstrap) as client, WireClient(kafka.bootstrap) as other:
            packed = request(client)
            meter.longest_seconds = 0.0
            try:
                client.send_bytes(packed)
                if client.has_answer(ANSWER_SECONDS):
                    client.receive_frame()
            except (ConnectionEnded, ConnectionError):
                pass
            # The answer is sent before its callback ends: the next one begins after that.
            other.ask(18, 0)
        assert meter.longest_seconds > 0, "nothing was measured"
        pauses.append(meter.longest_seconds / slowdown())
        if pauses[-1] < LIMIT_SECONDS:
            break
    return min(pauses)


def broken_off(packed: bytes) -> bytes:
    """A request that lacks its last byte."""
    return (len(packed) - 5).to_bytes(4, "big") + packed[4:-1]


def overwritten(packed: bytes, position: int, number: int) -> bytes:
    """A request in which four bytes are another number: a count, a length, an index, an epoch."""
    return packed[:position] + number.to_bytes(4, "big", signed=True) + packed[position + 4 :]


@pytest.mark.parametrize("api_key", APIS)
def test_the_worst_request_of_an_api_pauses_the_loop_for_less_than_20_ms(
    kafka: EmbeddedBroker, meter: BusyMeter, api_key: int
) -> None:
    for number, case in enumerate(WORST[api_key]):
        pause = longest_pause(kafka, meter, lambda client: pack(client, api_key, case))  # noqa: B023
        assert pause < LIMIT_SECONDS, f"case {number}"


@pytest.mark.parametrize("api_key", APIS)
def test_a_request_that_breaks_off_pauses_the_loop_for_less_than_20_ms(
    kafka: EmbeddedBroker, meter: BusyMeter, api_key: int
) -> None:
    pause = longest_pause(kafka, meter, lambda client: broken_off(pack(client, api_key, WORST[api_key][-1])))
    assert pause < LIMIT_SECONDS


@pytest.mark.parametrize("api_key", APIS)
def test_wrong_counts_and_lengths_pause_the_loop_for_less_than_20_ms(
    kafka: EmbeddedBroker, meter: BusyMeter, api_key: int
) -> None:
    with WireClient(kafka.bootstrap) as client:
        packed = pack(client, api_key, WORST[api_key][-1])
    begin = 4 + 8 + 2  # the length, the header and a client id that is absent
    for position in range(begin, min(begin + 40, len(packed) - 4), 10):
        for number in (-1, 2**31 - 1):
            wrong = overwritten(packed, position, number)
            assert longest_pause(kafka, meter, lambda _: wrong) < LIMIT_SECONDS, position  # noqa: B023


def pauses(kafka: EmbeddedBroker, meter: BusyMeter, act: Callable[[WireClient], None]) -> float:
    """The longest callback of the loop while something is done; the best try."""
    found = []
    for _ in range(TRIES):
        with WireClient(kafka.bootstrap) as client:
            meter.longest_seconds = 0.0
            act(client)
        found.append(meter.longest_seconds / slowdown())
        if found[-1] < LIMIT_SECONDS:
            break
    return min(found)


def end_offset(client: WireClient, topic: str) -> int:
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    answer = client.ask(2, 5, replica_id=-1, isolation_level=0, topics=asked)
    return int(answer.topics[0].partitions[0].offset)


def waiting_batches(client: WireClient, topic: str) -> int:
    asked = [{"resource_type": 2, "resource_name": topic, "configuration_keys": ["headrace.overflow.status"]}]
    answer = client.ask(32, 4, resources=asked, include_synonyms=False, include_documentation=False)
    return int(json.loads(answer.results[0].configs[0].value)[0]["waiting_batches"])


@pytest.mark.parametrize(
    "batch",
    [lambda: large_batch(size=HUGE_BATCH_BYTES), lambda: broken_batch(HUGE_BATCH_BYTES // 2)],
    ids=["record", "batch that cannot be read"],
)
def test_a_large_dead_letter_pauses_the_loop_for_less_than_20_ms(
    kafka: EmbeddedBroker, meter: BusyMeter, batch: Callable[[], bytes]
) -> None:
    def reject(client: WireClient) -> None:
        topic, group = queue_with(client, batch())
        partition = share_partitions(topic_id(client, topic), [0])
        client.ask(78, 1, **{**share_fetch(group, 0, partition), "max_wait": 10_000})
        ranges = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": (3,)}]
        rejected = share_partitions(topic_id(client, topic), [0], ranges)
        session = {"group_id": group, "member_id": MEMBER, "share_session_epoch": 1}
        assert client.ask(79, 1, **session, **rejected).error_code == 0
        letters = f"{topic}.{group}.dead"
        while not (client.ask(3, 9, topics=[{"name": letters}], **METADATA_FLAGS).topics[0].partitions):
            pass
        while not end_offset(client, letters):
            pass

    assert pauses(kafka, meter, reject) < LIMIT_SECONDS


def test_a_large_batch_that_waits_for_room_pauses_the_loop_for_less_than_20_ms(
    kafka: EmbeddedBroker, meter: BusyMeter
) -> None:
    def delay(client: WireClient) -> None:
        topic, group = queue_with(client, batch_of(b"first"))
        settings = {
            "max.message.bytes": str(2 * HUGE_BATCH_BYTES),
            "headrace.overflow": "block",
            "headrace.overflow.records": "1",
            "headrace.overflow.groups": group,
            "headrace.overflow.timeout.ms": "600000",
        }
        changed = [resource(topic, *settings.items())]
        assert client.ask(44, 1, resources=changed, validate_only=False).responses[0].error_code == 0
        with WireClient(kafka.bootstrap) as reader:
            partition = share_partitions(topic_id(reader, topic), [0])
            fetched = reader.ask(78, 1, **{**share_fetch(group, 0, partition), "max_wait": 100_000})
            assert fetched.responses[0].partitions[0].acquired_records
            written = produce({0: large_batch(size=HUGE_BATCH_BYTES)}, topic)
            client.send(0, 9, **{**written, "timeout": 600_000})
            while not (waits := waiting_batches(reader, topic)) and not client.has_answer():
                pass
            assert waits
            ranges = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": (1,)}]
            done = share_partitions(topic_id(reader, topic), [0], ranges)
            session = {"group_id": group, "member_id": MEMBER, "share_session_epoch": 1}
            assert reader.ask(79, 1, **session, **done).error_code == 0
        stored = client.receive().responses[0].partition_responses[0]
        assert (stored.error_code, stored.base_offset) == (0, 1)

    assert pauses(kafka, meter, delay) < LIMIT_SECONDS


async def test_a_scrape_of_many_partitions_pauses_the_loop_for_less_than_20_ms(
    meter: BusyMeter, tmp_path: Path
) -> None:
    running = await Broker.start(BrokerConfig(data=tmp_path, port=0))
    try:
        running.topics.create("wide", WIDE, {})
        pauses = []
        for _ in range(TRIES):
            await asyncio.sleep(0)
            meter.longest_seconds = 0.0
            scrape = Scrape()
            await take_samples(running, scrape)
            await asyncio.sleep(0)
            assert len(scrape.samples[LOG_SIZE]) > WIDE
            pauses.append(meter.longest_seconds / slowdown())
        assert min(pauses) < LIMIT_SECONDS
    finally:
        await running.stop()
