"""Clients that load one topic while its broker is killed, and record what they see in a history."""

import random
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from headrace import queue
from headrace.errors import HeadraceError
from tests.soak.history import Assign, Commit, History, Log, Outcome, Poll, Send

EVENTS: Final = "events"
COPY: Final = "copied"
PARTITIONS: Final = 4
GROUP: Final = "members"
CREW: Final = "crew"
VALUES_OF_ONE_PRODUCER: Final = 10_000_000
"""Each producer numbers its values in a range of its own, so that no value is sent twice."""
CALM_SECONDS: Final = 120.0

CLIENT: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    # librdkafka 2.15 otherwise forgets the coordinator of a transaction while its only broker is away.
    "metadata.recovery.strategy": "none",
    "error_cb": lambda _: None,
    "log_level": 0,
}


class Client(threading.Thread):
    """A client in a thread of its own; `faults` holds the exception that ended it."""

    def __init__(self, name: str, bootstrap: str, history: History, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.faults: list[Exception] = []
        self.stop = threading.Event()
        self.history = history
        self.random = random.Random(f"{name} {seed}")
        self.broker = bootstrap

    def run(self) -> None:
        try:
            self.work()
        except Exception as fault:  # noqa: BLE001 - the test raises it
            self.faults.append(fault)

    def work(self) -> None:
        raise NotImplementedError

    def settings(self, **more: Any) -> dict[str, Any]:
        """What a client of librdkafka is configured with."""
        named = {name.replace("_", "."): value for name, value in more.items()}
        return {"bootstrap.servers": self.broker, **CLIENT, **named}


class IdempotentProducer(Client):
    """Sends single values; a value without an acknowledgment has an unknown outcome."""

    def __init__(self, number: int, bootstrap: str, history: History, seed: int) -> None:
        super().__init__(f"idempotent-{number}", bootstrap, history, seed)
        self._values = count(number * VALUES_OF_ONE_PRODUCER)

    def work(self) -> None:
        producer = Producer(self.settings(enable_idempotence=True, linger_ms=2, message_timeout_ms=120_000))
        while not self.stop.is_set():
            for _ in range(self.random.randint(1, 20)):
                partition, value = self.random.randrange(PARTITIONS), next(self._values)
                producer.produce(EVENTS, str(value), partition=partition, on_delivery=self._delivered)
            self.stop.wait(self.random.uniform(0, 0.2))  # paces the load: `poll` returns with the first event
            producer.poll(0)
        producer.flush(CALM_SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self.history.append(
            Send(
                producer=self.name,
                partition=message.partition(),
                value=int(message.value()),
                outcome=Outcome.COMMITTED if error is None else Outcome.UNKNOWN,
                offset=message.offset() if error is None else None,
            )
        )


class TransactionalProducer(Client):
    """Sends values in transactions, of which it aborts some; a fatal error begins a new producer."""

    def __init__(self, number: int, bootstrap: str, history: History, seed: int) -> None:
        super().__init__(f"transactional-{number}", bootstrap, history, seed)
        self._values = count(number * VALUES_OF_ONE_PRODUCER)
        self._pending: list[tuple[int, int]] = []
        self._offsets: dict[int, int] = {}

    def work(self) -> None:
        while not self.stop.is_set():
            producer = Producer(
                self.settings(transactional_id=self.name, linger_ms=2, transaction_timeout_ms=30_000)
            )
            try:
                producer.init_transactions(CALM_SECONDS)
                while not self.stop.is_set():
                    self._transact(producer)
            except KafkaException as fault:
                # The end found no transaction: its partitions were never added, or it was aborted.
                was_none = fault.args[0].code() == KafkaError.INVALID_TXN_STATE
                self._settle(Outcome.ABORTED if was_none else Outcome.UNKNOWN)

    def _transact(self, producer: Producer) -> None:
        self._pending, self._offsets = [], {}
        producer.begin_transaction()
        for _ in range(self.random.randint(1, 10)):
            partition, value = self.random.randrange(PARTITIONS), next(self._values)
            self._pending.append((partition, value))
            producer.produce(EVENTS, str(value), partition=partition, on_delivery=self._delivered)
        self.stop.wait(self.random.uniform(0, 0.2))
        producer.poll(0)
        if self.random.random() < 0.2:
            self._abort(producer)
            return
        try:
            self._until_done(producer.commit_transaction)
        except KafkaException as fault:
            if not fault.args[0].txn_requires_abort():
                raise
            self._abort(producer)
            return
        self._settle(Outcome.COMMITTED)

    def _abort(self, producer: Producer) -> None:
        self._until_done(producer.abort_transaction)
        self._settle(Outcome.ABORTED)

    @staticmethod
    def _until_done(act: Callable[[float], None]) -> None:
        while True:
            try:
                act(CALM_SECONDS)
            except KafkaException as fault:
                if not fault.args[0].retriable():
                    raise
            else:
                return

    def _settle(self, outcome: Outcome) -> None:
        for partition, value in self._pending:
            self.history.append(
                Send(
                    producer=self.name,
                    partition=partition,
                    value=value,
                    outcome=outcome,
                    offset=self._offsets.get(value),
                )
            )
        self._pending = []

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._offsets[int(message.value())] = message.offset()


class Reader(Client):
    """A consumer without a group that follows the topic, and positions itself again from time to time."""

    def work(self) -> None:
        consumer = Consumer(self.settings(group_id="reader", isolation_level="read_committed"))
        self._seek(consumer, [OFFSET_BEGINNING] * PARTITIONS)
        while not self.stop.is_set():
            record_polls(self.history, self.name, consumer.consume(500, 0.1))
            if self.random.random() < 0.01:
                positions = consumer.position([TopicPartition(EVENTS, n) for n in range(PARTITIONS)])
                if all(
                    position.offset >= 0 for position in positions
                ):  # negative: nothing polled since the seek
                    self._seek(consumer, [max(0, position.offset - 100) for position in positions])
        consumer.close()

    def _seek(self, consumer: Consumer, offsets: list[int]) -> None:
        for partition in range(PARTITIONS):
            self.history.append(Assign(consumer=self.name, partition=partition))
        consumer.assign([TopicPartition(EVENTS, n, offset) for n, offset in enumerate(offsets)])


class Receiver(Client):
    """A client that receives every committed value at least once, together with the others of its group."""

    def __init__(self, name: str, bootstrap: str, history: History, seed: int) -> None:
        super().__init__(name, bootstrap, history, seed)
        self.received: set[int] = set()


class Member(Receiver):
    """A member of a consumer group that commits what it has received; it leaves and joins again at times."""

    def work(self) -> None:
        while not self.stop.is_set():
            self._belong(time.monotonic() + self.random.uniform(5, 20))

    def _belong(self, until: float) -> None:
        consumer = Consumer(
            self.settings(
                group_id=GROUP,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
                session_timeout_ms=6_000,
            )
        )
        consumer.subscribe([EVENTS], on_assign=self._assigned)
        while not self.stop.is_set() and time.monotonic() < until:
            messages = consumer.consume(200, 0.1)
            self.received |= record_polls(self.history, self.name, messages)
            if messages:
                self._commit(consumer)
        consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            committed = self.history.confirmed(partition.partition)
            self.history.append(
                Assign(consumer=self.name, partition=partition.partition, committed=committed)
            )

    def _commit(self, consumer: Consumer) -> None:
        try:
            confirmed = consumer.commit(asynchronous=False)
        except KafkaException:
            return  # fenced, or the broker is down: the next member continues at an earlier offset
        for partition in confirmed or ():
            if partition.error is None and partition.offset >= 0:
                self.history.append(Commit(partition=partition.partition, offset=partition.offset))


class Worker(Receiver):
    """A worker of a share group: it accepts most messages and releases some."""

    def work(self) -> None:
        while not self.stop.is_set():
            try:
                self._serve()
            except HeadraceError:
                continue  # the broker was away for too long

    def _serve(self) -> None:
        for message in queue(
            EVENTS,
            group=CREW,
            broker=self.broker,
            prefetch=self.random.choice([5, 50]),
            idle_timeout="1 second",
        ):
            if self.random.random() < 0.02 and message.deliveries < 3:
                message.release()
            else:
                self.received.add(int(message.value or b""))
            if self.stop.is_set():
                return


def record_polls(history: History, consumer: str, messages: list[Message]) -> set[int]:
    """Append what a consumer received; its values are returned."""
    values = set()
    for message in messages:
        if message.error() is not None:
            continue  # the broker is down; librdkafka retries
        value = int(message.value())
        values.add(value)
        history.append(
            Poll(consumer=consumer, partition=message.partition(), offset=message.offset(), value=value)
        )
    return values


def read_log(bootstrap: str, topic: str, partitions: int) -> Log:
    """The committed values of each partition, from its beginning to its end now."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "log", "enable.partition.eof": True, **CLIENT}
        | {"isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    log: Log = [{} for _ in range(partitions)]
    unread = set(range(partitions))
    deadline = time.monotonic() + CALM_SECONDS
    while unread:
        assert time.monotonic() < deadline, f"partitions {unread} of {topic} could not be read to their end"
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is None:
                log[message.partition()][message.offset()] = int(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
    consumer.close()
    return log
