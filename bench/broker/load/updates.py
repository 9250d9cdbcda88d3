"""Updates of a fixed set of keys: written in a known order, and verified when they are read.

Update number n goes to key n × STRIDE mod keys. STRIDE and the number of keys are coprime, so that each
sequence of `keys` updates contains every key once: the latest update of each key is among the last `keys`
updates, and compaction never removes the last update.
"""

import struct
from array import array

from confluent_kafka import Message, Producer, TopicPartition

from bench.broker.load.job import Job, Outcome, Window
from bench.broker.load.librdkafka import (
    CONSUMED_AT_ONCE,
    LoadFailed,
    check,
    flush,
    make_consumer,
    make_producer,
)

STRIDE = 7_919_081
NUMBER = struct.Struct(">q")
QUEUE_FULL_SECONDS = 0.001


def produce(job: Job) -> Outcome:
    """Write `records` updates, and return when all are acknowledged."""
    producer = make_producer(job)
    padding = bytes(job.record_bytes - NUMBER.size)
    with Window(job) as window:
        for number in range(job.records):
            _enqueue(producer, job, key_of(number, job.keys), NUMBER.pack(number) + padding)
        flush(producer)
    return window.outcome(job.records)


def consume(job: Job) -> Outcome:
    """Read from the start to the last update, which may not exist yet; verify order and latest values."""
    consumer = make_consumer(job)
    latest = array("q", [-1]) * job.keys
    received, last_offset, number = 0, -1, -1
    with Window(job) as window:
        consumer.assign([TopicPartition(job.topic, 0, 0)])
        while number < job.records - 1:
            messages = consumer.consume(num_messages=CONSUMED_AT_ONCE, timeout=0.1)
            check(messages[-1:])
            for message in messages:
                (number,) = NUMBER.unpack_from(message.value() or b"")
                latest[number * STRIDE % job.keys] = number
            received += len(messages)
            last_offset = _check_order(messages, last_offset)
    consumer.close()
    _check_latest(job, latest)
    return window.outcome(received)


def _enqueue(producer: Producer, job: Job, key: bytes, value: bytes) -> None:
    # One by one: a batch that the queue takes only in part would change the order.
    while True:
        try:
            return producer.produce(job.topic, value, key)
        except BufferError:
            producer.poll(QUEUE_FULL_SECONDS)


def key_of(number: int, keys: int) -> bytes:
    """The key of an update."""
    return b"key-%09d" % (number * STRIDE % keys)


def _check_order(messages: list[Message], last_offset: int) -> int:
    for message in messages:
        offset = message.offset() or 0
        if offset <= last_offset:
            raise LoadFailed(f"offset {offset} came after {last_offset}.")
        last_offset = offset
    return last_offset


def _check_latest(job: Job, latest: "array[int]") -> None:
    stale = sum(number < job.records - job.keys for number in latest)
    if stale:
        raise LoadFailed(f"{stale} of {job.keys} keys do not have their latest value.")
