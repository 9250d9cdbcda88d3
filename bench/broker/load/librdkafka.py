"""Load by librdkafka (confluent-kafka), with the same program for Headrace and Apache Kafka.

Its figures depend on the client as much as on the broker: the readings contain the CPU time of both.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.broker.load.job import Job, Outcome, Window
from bench.broker.load.latencies import DRAIN_SECONDS, Arrivals, pace, sleep_until, stamped

BATCH = 1_000
CONSUMED_AT_ONCE = 500  # larger lists leave the processor's cache, and halve the rate of small records
TIMEOUT_SECONDS = 30
QUEUE_FULL_SECONDS = 0.0005


class LoadFailed(Exception):
    """The broker rejected or lost records."""


def produce(job: Job) -> Outcome:
    """Produce with the client's own batching until the time has passed and all is acknowledged."""
    with topic_of(job):
        producer = make_producer(job)
        messages = [{"value": random.randbytes(job.record_bytes)} for _ in range(BATCH)]
        warmed = _produce_once(producer, job, messages)
        records = 0
        with Window(job) as window:
            while window.is_open:
                records += _enqueue(producer, job, messages)
            flush(producer)
        _check_stored(job, warmed + records)
        return window.outcome(records)


def consume(job: Job) -> Outcome:
    """Read the records that `produce` wrote, by explicit assignment, so without a consumer group."""
    with topic_of(job):
        # The fetch that waits at the end of the topic holds up the first one of the next pass.
        consumer = make_consumer(job, **{"fetch.wait.max.ms": 5})
        consumer.list_topics(job.topic, timeout=TIMEOUT_SECONDS)
        records = 0
        with Window(job) as window:
            while window.is_open:
                records += _read_through(consumer, job, window)
        consumer.close()
        return window.outcome(records)


def requests(job: Job) -> Outcome:
    """One record per request: pipelined, or one by one if only one may be in flight."""
    with topic_of(job):
        producer = make_producer(job, **_one_record_a_request(job))
        messages = [{"value": random.randbytes(job.record_bytes)}] * (BATCH if job.in_flight > 1 else 1)
        warmed = _produce_once(producer, job, messages)
        records = 0
        with Window(job) as window:
            while window.is_open:
                records += _enqueue(producer, job, messages)
                if job.in_flight == 1:
                    flush(producer)
            flush(producer)
        _check_stored(job, warmed + records)
        return window.outcome(records)


def latency(job: Job) -> Outcome:
    """A producer and a consumer at the same time; the latency is from `produce` to `poll`."""
    with topic_of(job):
        consumer, producer = make_consumer(job), make_producer(job, **{"linger.ms": 0})
        consumer.assign([TopicPartition(job.topic, 0, 0)])
        arrivals = Arrivals(job)
        reader = threading.Thread(target=_take_arrivals, args=(consumer, arrivals), daemon=True)
        reader.start()
        with Window(job) as window:
            for due in pace(job):
                sleep_until(due)
                producer.produce(job.topic, stamped(job.record_bytes))
                producer.poll(0)
            flush(producer)
            arrivals.complete.wait(DRAIN_SECONDS)
        summary = arrivals.summary()
        reader.join()
        consumer.close()
        return window.outcome(int(job.seconds * job.rate), latencies_ms=summary)


@contextmanager
def topic_of(job: Job) -> Iterator[None]:
    """The job's topic, created if it does not exist, and deleted at the end unless it is to be kept."""
    admin = AdminClient(_address(job))
    made = admin.create_topics([NewTopic(job.topic, job.partitions, 1, config=job.settings)])[job.topic]
    try:
        made.result(TIMEOUT_SECONDS)
    except KafkaException as refused:
        if refused.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    yield
    if not job.keep:
        admin.delete_topics([job.topic])[job.topic].result(TIMEOUT_SECONDS)


def _address(job: Job) -> dict[str, str]:
    tls = {"security.protocol": "SSL", "ssl.ca.location": job.ca} if job.ca else {}
    return {"bootstrap.servers": job.address, **tls}


def make_producer(job: Job, **settings: Any) -> Producer:
    """A producer with librdkafka's defaults, except for what the measurement needs."""
    return Producer(
        {
            **_address(job),
            "acks": "all",
            # Python is called for failures only: a call for each record would measure the client.
            "delivery.report.only.error": True,
            "on_delivery": _raise_failure,
            "error_cb": _raise_fatal,
            **settings,
        }
    )


def _one_record_a_request(job: Job) -> dict[str, Any]:
    return {
        "linger.ms": 0,
        "batch.num.messages": 1,
        "max.in.flight.requests.per.connection": job.in_flight,
        "queue.buffering.max.messages": BATCH,  # so that little is left to flush when the time has passed
    }


def make_consumer(job: Job, **settings: Any) -> Consumer:
    """A consumer that fetches without pauses, with assigned partitions."""
    return Consumer(
        {
            **_address(job),
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            # By default librdkafka rests up to a second whenever its queue is full, and the broker with it.
            "fetch.queue.backoff.ms": 1,
            "queued.min.messages": 1_000_000,
            "error_cb": _raise_fatal,
            **settings,
        }
    )


def _read_through(consumer: Consumer, job: Job, window: Window) -> int:
    """Read from the start to the end, or until the time has passed; returns the number of records."""
    records = 0
    consumer.assign([TopicPartition(job.topic, index, 0) for index in range(job.partitions)])
    while records < job.records and window.is_open:
        # Never more than there are: `consume` would wait for them until its timeout.
        wanted = min(CONSUMED_AT_ONCE, job.records - records)
        messages = consumer.consume(num_messages=wanted, timeout=1)
        records += len(messages)
        check(messages[-1:])
    return records


def _produce_once(producer: Producer, job: Job, messages: list[dict[str, Any]]) -> int:
    """Connect and find the leaders before the measurement; returns the number of records for that."""
    for partition in range(job.partitions):
        producer.produce(job.topic, messages[0]["value"], partition=partition)
    flush(producer)
    return job.partitions


def _enqueue(producer: Producer, job: Job, messages: list[dict[str, Any]]) -> int:
    """Pass the batch to librdkafka, and wait if its queue is full; returns the number of accepted records."""
    try:
        taken: int = producer.produce_batch(job.topic, messages)
    except BufferError:
        taken = 0
    producer.poll(0)
    if taken < len(messages):
        time.sleep(QUEUE_FULL_SECONDS)
    return taken


def flush(producer: Producer) -> None:
    """Return when everything produced is acknowledged."""
    left = producer.flush(TIMEOUT_SECONDS)
    if left:
        raise LoadFailed(f"{left} records were not acknowledged within {TIMEOUT_SECONDS} s.")


def _check_stored(job: Job, records: int) -> None:
    consumer = make_consumer(job)
    ends = [
        consumer.get_watermark_offsets(TopicPartition(job.topic, index), timeout=TIMEOUT_SECONDS)[1]
        for index in range(job.partitions)
    ]
    consumer.close()
    if sum(ends) != records:
        raise LoadFailed(f"{records} records were acknowledged, and {sum(ends)} are in the log.")


def _take_arrivals(consumer: Consumer, arrivals: Arrivals) -> None:
    deadline = None
    while not arrivals.complete.is_set():
        message = consumer.poll(0.1)
        if message is None:
            deadline = deadline or time.monotonic() + DRAIN_SECONDS
            if time.monotonic() > deadline:
                return
            continue
        deadline = None
        check([message])
        arrivals.add(message.value() or b"")


def check(messages: list[Message]) -> None:
    """Raise an exception if one of the messages is an error."""
    for message in messages:
        if message.error() is not None:
            raise KafkaException(message.error())


def _raise_failure(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def _raise_fatal(error: KafkaError) -> None:
    if error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN:
        raise KafkaException(error)
