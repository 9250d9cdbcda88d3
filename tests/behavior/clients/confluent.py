"""confluent-kafka (librdkafka) as a `Client`."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, ClassVar, TypeVar

import confluent_kafka as ck
from confluent_kafka import admin as cka
from kio.schema.errors import ErrorCode

from headrace.client.bootstrap import client_config
from tests.behavior.clients.contract import (
    CONSUMER_DEFAULTS,
    PATIENCE_S,
    PRODUCER_DEFAULTS,
    Config,
    ConsumerOptions,
    Group,
    Isolation,
    Member,
    Message,
    OffsetAt,
    ProducerOptions,
    Received,
    Refused,
    Sent,
    TopicPartition,
)

Answer = TypeVar("Answer")

# Errors that librdkafka raises under numbers of its own for what the broker said.
LOCAL_ERRORS = {
    ck.KafkaError._FENCED: ErrorCode.producer_fenced,
    ck.KafkaError._FATAL: ErrorCode.fenced_instance_id,  # what is fatal to a consumer; the number is lost
    ck.KafkaError._AUTO_OFFSET_RESET: ErrorCode.offset_out_of_range,
    ck.KafkaError._UNKNOWN_TOPIC: ErrorCode.unknown_topic_or_partition,
    ck.KafkaError._UNKNOWN_PARTITION: ErrorCode.unknown_topic_or_partition,
    ck.KafkaError._TIMED_OUT: ErrorCode.request_timed_out,
    ck.KafkaError._MSG_TIMED_OUT: ErrorCode.request_timed_out,
}
STARTS = {"earliest": ck.OFFSET_BEGINNING, "latest": ck.OFFSET_END, "none": ck.OFFSET_INVALID}
ISOLATION = {
    "read_uncommitted": ck.IsolationLevel.READ_UNCOMMITTED,
    "read_committed": ck.IsolationLevel.READ_COMMITTED,
}


def refusal(error: ck.KafkaError) -> Refused:
    """The library's error in Kafka's words."""
    code = LOCAL_ERRORS.get(error.code())
    if code is None:
        code = ErrorCode(error.code()) if error.code() >= -1 else ErrorCode.unknown_server_error
    return Refused(code, f"{error.name()} {error.str()}")


def ask(call: Callable[[], Answer]) -> Answer:
    """The call's answer, with the library's errors translated."""
    try:
        return call()
    except ck.KafkaException as failure:
        raise refusal(failure.args[0]) from failure


def only(futures: Mapping[Any, Future[Any]]) -> Any:
    """The answer of an admin request about one thing."""
    (future,) = futures.values()
    return ask(lambda: future.result(PATIENCE_S))


class ConfluentProducer:
    """A `Producer` on `confluent_kafka.Producer`."""

    def __init__(self, bootstrap: str, options: ProducerOptions) -> None:
        self._transactional = options.transactional_id is not None
        settings: dict[str, Any] = {
            **client_config(bootstrap),
            "acks": options.acks,
            "compression.type": options.compression,
            "enable.idempotence": options.idempotent or self._transactional,
            "linger.ms": options.linger_ms,
            "partitioner": "murmur2_random",  # as the other libraries do
            "message.max.bytes": 50_000_000,
            "message.timeout.ms": min(int(PATIENCE_S * 1000), options.transaction_timeout_ms),
            "log_level": 0,
        }
        if self._transactional:
            settings["transactional.id"] = options.transactional_id
            settings["transaction.timeout.ms"] = options.transaction_timeout_ms
        self._producer = ck.Producer(settings)
        if self._transactional:
            ask(lambda: self._producer.init_transactions(PATIENCE_S))

    def send(self, topic: str, messages: Sequence[Message]) -> list[Sent]:
        reports: list[Sent | Refused | None] = [None] * len(messages)
        for index, message in enumerate(messages):
            ask(lambda i=index, m=message: self._produce(topic, m, i, reports))
        deadline = time.monotonic() + PATIENCE_S
        # Not flush(): a fatal error that is raised in it makes the reports behind it fail.
        while None in reports and time.monotonic() < deadline:
            ask(lambda: self._producer.poll(0.1))
        for report in reports:
            if isinstance(report, Refused):
                raise report
        return [report for report in reports if isinstance(report, Sent)]

    def _produce(
        self, topic: str, message: Message, index: int, reports: list[Sent | Refused | None]
    ) -> None:
        def delivered(error: ck.KafkaError | None, report: ck.Message) -> None:
            reports[index] = (
                refusal(error) if error else Sent(partition=report.partition(), offset=report.offset())
            )

        self._producer.produce(
            topic,
            value=message.value,
            key=message.key,
            headers=list(message.headers),
            partition=-1 if message.partition is None else message.partition,
            timestamp=message.timestamp_ms or 0,
            on_delivery=delivered,
        )

    def begin(self) -> None:
        ask(self._producer.begin_transaction)

    def send_offsets(self, consumer: "ConfluentConsumer", offsets: Mapping[TopicPartition, int]) -> None:
        positions = [ck.TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        ask(
            lambda: self._producer.send_offsets_to_transaction(
                positions, consumer.raw.consumer_group_metadata(), PATIENCE_S
            )
        )

    def commit(self) -> None:
        ask(lambda: self._producer.commit_transaction(PATIENCE_S))

    def abort(self) -> None:
        ask(lambda: self._producer.abort_transaction(PATIENCE_S))

    def close(self) -> None:
        self._producer.purge()
        with suppress(ck.KafkaException):  # a fenced producer says so again
            self._producer.poll(0)


class ConfluentConsumer:
    """A `Consumer` on `confluent_kafka.Consumer`."""

    def __init__(self, bootstrap: str, options: ConsumerOptions) -> None:
        settings: dict[str, Any] = {
            **client_config(bootstrap),
            "group.id": options.group or "no-group",
            "auto.offset.reset": "error" if options.reset == "none" else options.reset,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": options.isolation,
            "partition.assignment.strategy": options.assignor,
            "session.timeout.ms": options.session_timeout_ms,
            "heartbeat.interval.ms": 200,
            "fetch.min.bytes": options.fetch_min_bytes,
            "max.partition.fetch.bytes": options.partition_max_bytes,
            "fetch.wait.max.ms": options.fetch_wait_ms,
            "log_level": 0,
        }
        if options.instance_id is not None:
            settings["group.instance.id"] = options.instance_id
        self.raw = ck.Consumer(settings)
        self.assignments = 0
        self._closed = False
        # librdkafka always has a group: without one of the test's, there are no committed offsets to ask for.
        self._start = ck.OFFSET_STORED if options.group else STARTS[options.reset]

    def assign(self, *partitions: TopicPartition) -> None:
        self.raw.assign([ck.TopicPartition(*partition, self._start) for partition in partitions])

    def subscribe(self, *topics: str) -> None:
        self.raw.subscribe(list(topics), on_assign=self._on_assign)

    def _on_assign(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self.assignments += 1

    def poll(self, timeout_s: float) -> list[Received]:
        received = []
        message = self.raw.poll(timeout_s)
        while message is not None:
            if message.error() is None:
                received.append(_received(message))
            elif not (refused := refusal(message.error())).error.retriable:  # librdkafka retries other errors
                raise refused
            message = self.raw.poll(0)
        return received

    def seek(self, partition: TopicPartition, offset: int) -> None:
        ask(lambda: self.raw.seek(ck.TopicPartition(*partition, offset)))

    def position(self, partition: TopicPartition) -> int:
        (position,) = self.raw.position([ck.TopicPartition(*partition)])
        return int(position.offset)

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(each.topic, each.partition) for each in self.raw.assignment())

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        positions = [ck.TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        for committed in ask(lambda: self.raw.commit(offsets=positions, asynchronous=False)):
            if committed.error:
                raise refusal(committed.error)

    def committed(self, partition: TopicPartition) -> int | None:
        (position,) = ask(lambda: self.raw.committed([ck.TopicPartition(*partition)], PATIENCE_S))
        if position.error:
            raise refusal(position.error)
        return None if position.offset < 0 else int(position.offset)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.raw.close()


def _received(message: ck.Message) -> Received:
    return Received(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=message.timestamp()[1],
    )


class ConfluentClient:
    """A `Client` on confluent-kafka."""

    CANNOT: ClassVar[Mapping[str, str]] = {
        "sticky": "librdkafka has the cooperative sticky assignor only",
        "delete offsets": "its admin client has no OffsetDelete",
    }

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._opened = ExitStack()
        self._admin = cka.AdminClient(client_config(bootstrap, {"log_level": 0}))

    def producer(self, options: ProducerOptions = PRODUCER_DEFAULTS) -> ConfluentProducer:
        producer = ConfluentProducer(self._bootstrap, options)
        self._opened.callback(producer.close)
        return producer

    def consumer(self, options: ConsumerOptions = CONSUMER_DEFAULTS) -> ConfluentConsumer:
        consumer = ConfluentConsumer(self._bootstrap, options)
        self._opened.callback(consumer.close)
        return consumer

    def topics(self) -> set[str]:
        return set(self._metadata())

    def partitions(self, topic: str) -> int:
        described = self._metadata().get(topic)
        return len(described.partitions) if described else 0

    def _metadata(self) -> dict[str, Any]:
        return dict(ask(lambda: self._admin.list_topics(timeout=PATIENCE_S)).topics)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, replicas: int = 1
    ) -> None:
        new = cka.NewTopic(
            topic, num_partitions=partitions, replication_factor=replicas, config=dict(configs or {})
        )
        only(self._admin.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        only(self._admin.delete_topics([topic]))

    def add_partitions(self, topic: str, total: int) -> None:
        only(self._admin.create_partitions([cka.NewPartitions(topic, total)]))

    def configs(self, topic: str) -> dict[str, Config]:
        entries = only(self._admin.describe_configs([cka.ConfigResource(cka.ResourceType.TOPIC, topic)]))
        return {name: Config(value=each.value, is_default=each.is_default) for name, each in entries.items()}

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        entries = [
            cka.ConfigEntry(
                name,
                value,
                incremental_operation=cka.AlterConfigOpType.DELETE
                if value is None
                else cka.AlterConfigOpType.SET,
            )
            for name, value in changes.items()
        ]
        resource = cka.ConfigResource(cka.ResourceType.TOPIC, topic, incremental_configs=entries)
        only(self._admin.incremental_alter_configs([resource]))

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = cka.ConfigResource(cka.ResourceType.TOPIC, topic, set_config=dict(configs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what is shown here is the old request
            only(self._admin.alter_configs([resource]))

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        deleted = only(self._admin.delete_records([ck.TopicPartition(*partition, before)]))
        return int(deleted.low_watermark)

    def offset(
        self, partition: TopicPartition, at: OffsetAt, isolation: Isolation = "read_uncommitted"
    ) -> int:
        spec = cka.OffsetSpec.for_timestamp(at) if isinstance(at, int) else getattr(cka.OffsetSpec, at)()
        request = {ck.TopicPartition(*partition): spec}
        found = only(self._admin.list_offsets(request, isolation_level=ISOLATION[isolation]))
        return int(found.offset)

    def groups(self) -> set[str]:
        listed = ask(lambda: self._admin.list_consumer_groups().result(PATIENCE_S))
        return {group.group_id for group in listed.valid}

    def group(self, group: str) -> Group:
        described = only(self._admin.describe_consumer_groups([group]))
        members = tuple(
            Member(
                instance_id=member.group_instance_id,
                partitions=frozenset(
                    TopicPartition(each.topic, each.partition) for each in member.assignment.topic_partitions
                ),
            )
            for member in described.members
        )
        return Group(state=described.state.name.replace("_", "").lower(), members=members)

    def delete_group(self, group: str) -> None:
        only(self._admin.delete_consumer_groups([group]))

    def delete_offsets(self, group: str, partition: TopicPartition) -> None:
        raise NotImplementedError(self.CANNOT["delete offsets"])

    def close(self) -> None:
        self._opened.close()
