"""aiokafka as a `Client`: its coroutines run on an event loop in a thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar

import aiokafka
from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from kio.schema.errors import ErrorCode

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

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
# Errors that aiokafka raises without Kafka's number.
LOCAL_ERRORS: Mapping[type[Exception], ErrorCode] = {
    errors.ProducerFenced: ErrorCode.producer_fenced,
    errors.NoOffsetForPartitionError: ErrorCode.offset_out_of_range,
    errors.KafkaTimeoutError: ErrorCode.request_timed_out,
}


class Loop:
    """An event loop in a thread; `run` waits for a coroutine that it runs there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        async def answer() -> Answer:
            return await asyncio.wait_for(call(), PATIENCE_S * 2)

        try:
            return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()
        except errors.KafkaError as failure:
            raise refusal(failure) from failure

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def refusal(error: errors.KafkaError) -> Refused:
    """The library's error in Kafka's words."""
    if type(error) in LOCAL_ERRORS:
        return Refused(LOCAL_ERRORS[type(error)], str(error))
    number = getattr(error, "errno", -1)
    return Refused(ErrorCode(number), f"{type(error).__name__} {error}")


def check(code: int, detail: str | None) -> None:
    """Raise the error that an admin answer carries, if it carries one."""
    if code:
        raise Refused(ErrorCode(code), detail or "")


class AioProducer:
    """A `Producer` on `AIOKafkaProducer`."""

    def __init__(self, loop: Loop, bootstrap: str, options: ProducerOptions) -> None:
        self._loop = loop
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "acks": "all" if options.acks == "all" else int(options.acks),
            "compression_type": None if options.compression == "none" else options.compression,
            "enable_idempotence": options.idempotent or options.transactional_id is not None,
            "linger_ms": options.linger_ms,
            "max_request_size": 50_000_000,
            "request_timeout_ms": int(PATIENCE_S * 1000),
        }
        if options.transactional_id is not None:
            settings["transactional_id"] = options.transactional_id
            settings["transaction_timeout_ms"] = options.transaction_timeout_ms
        self._producer: aiokafka.AIOKafkaProducer = loop.run(
            lambda: _started(aiokafka.AIOKafkaProducer, settings)
        )

    def send(self, topic: str, messages: Sequence[Message]) -> list[Sent]:
        return self._loop.run(lambda: self._send(topic, messages))

    async def _send(self, topic: str, messages: Sequence[Message]) -> list[Sent]:
        sending = [
            await self._producer.send(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=message.partition,
                timestamp_ms=message.timestamp_ms,
            )
            for message in messages
        ]
        reports = await asyncio.gather(*sending)
        # With acks=0 there is no report.
        return [
            Sent(partition=report.partition, offset=report.offset)
            if report
            else Sent(partition=-1, offset=-1)
            for report in reports
        ]

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction)

    def send_offsets(self, consumer: "AioConsumer", offsets: Mapping[TopicPartition, int]) -> None:
        positions = {aiokafka.TopicPartition(*partition): offset for partition, offset in offsets.items()}
        self._loop.run(lambda: self._producer.send_offsets_to_transaction(positions, consumer.group))

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction)

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction)

    def close(self) -> None:
        self._loop.run(self._producer.stop)


class AioConsumer(aiokafka.ConsumerRebalanceListener):
    """A `Consumer` on `AIOKafkaConsumer`."""

    def __init__(self, loop: Loop, bootstrap: str, options: ConsumerOptions) -> None:
        self._loop = loop
        self.group = options.group
        self.assignments = 0
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": options.group,
            "auto_offset_reset": options.reset,
            "enable_auto_commit": False,
            "isolation_level": options.isolation,
            "partition_assignment_strategy": (ASSIGNORS[options.assignor],),
            "group_instance_id": options.instance_id,
            "session_timeout_ms": options.session_timeout_ms,
            "heartbeat_interval_ms": 200,
            "fetch_min_bytes": options.fetch_min_bytes,
            "max_partition_fetch_bytes": options.partition_max_bytes,
            "fetch_max_wait_ms": options.fetch_wait_ms,
        }
        self._consumer: aiokafka.AIOKafkaConsumer = loop.run(
            lambda: _started(aiokafka.AIOKafkaConsumer, settings)
        )

    async def on_partitions_revoked(self, revoked: set[aiokafka.TopicPartition]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: set[aiokafka.TopicPartition]) -> None:
        self.assignments += 1

    def assign(self, *partitions: TopicPartition) -> None:
        self._call(lambda: self._consumer.assign([aiokafka.TopicPartition(*each) for each in partitions]))

    def subscribe(self, *topics: str) -> None:
        self._call(lambda: self._consumer.subscribe(list(topics), listener=self))

    def poll(self, timeout_s: float) -> list[Received]:
        batches = self._loop.run(lambda: self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [_received(record) for records in batches.values() for record in records]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._call(lambda: self._consumer.seek(aiokafka.TopicPartition(*partition), offset))

    def position(self, partition: TopicPartition) -> int:
        return self._loop.run(lambda: self._consumer.position(aiokafka.TopicPartition(*partition)))

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(each.topic, each.partition) for each in self._consumer.assignment())

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        positions = {aiokafka.TopicPartition(*partition): offset for partition, offset in offsets.items()}
        self._loop.run(lambda: self._consumer.commit(positions))

    def committed(self, partition: TopicPartition) -> int | None:
        return self._loop.run(lambda: self._consumer.committed(aiokafka.TopicPartition(*partition)))

    def offset(self, partition: TopicPartition, at: OffsetAt) -> int:
        """The offset as this consumer, with its isolation level, sees it."""
        wanted = aiokafka.TopicPartition(*partition)
        if at == "earliest":
            return self._loop.run(lambda: self._consumer.beginning_offsets([wanted]))[wanted]
        if at == "latest":
            return self._loop.run(lambda: self._consumer.end_offsets([wanted]))[wanted]
        found = self._loop.run(lambda: self._consumer.offsets_for_times({wanted: at}))[wanted]
        return -1 if found is None else found.offset

    def close(self) -> None:
        self._loop.run(self._consumer.stop)

    def _call(self, function: Callable[[], None]) -> None:
        async def on_the_loop() -> None:
            function()

        self._loop.run(on_the_loop)


async def _started(kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    started = kind(**settings)
    try:
        await started.start()
    except BaseException:
        await started.stop()
        raise
    return started


def _received(record: aiokafka.ConsumerRecord) -> Received:
    return Received(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
        timestamp_ms=record.timestamp,
    )


class AioClient:
    """A `Client` on aiokafka."""

    CANNOT: ClassVar[Mapping[str, str]] = {
        "cooperative-sticky": "aiokafka has eager assignors only",
        "max timestamp": "its ListOffsets goes up to version 5, before largest timestamps were answered",
        "incremental configs": "its admin client has AlterConfigs only",
        "instance id": "its DescribeGroups goes up to version 3, before instance ids were described",
        "fenced instance": "its Heartbeat 1 does not carry the instance id that the broker would fence",
        "invalid record": "it does not know this error of Kafka's, and raises an unknown one",
        "idempotent after a refusal": "it counts the sequence of a batch that was refused, and all after it "
        "is out of order",
        "delete group": "its admin client has no DeleteGroups",
        "delete offsets": "its admin client has no OffsetDelete",
    }

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._opened = ExitStack()
        self._loop = Loop()
        self._opened.callback(self._loop.close)
        settings = {"bootstrap_servers": bootstrap}
        self._admin: AIOKafkaAdminClient = self._loop.run(lambda: _started_admin(settings))
        self._opened.callback(lambda: self._loop.run(self._admin.close))

    def producer(self, options: ProducerOptions = PRODUCER_DEFAULTS) -> AioProducer:
        producer = AioProducer(self._loop, self._bootstrap, options)
        self._opened.callback(producer.close)
        return producer

    def consumer(self, options: ConsumerOptions = CONSUMER_DEFAULTS) -> AioConsumer:
        consumer = AioConsumer(self._loop, self._bootstrap, options)
        self._opened.callback(consumer.close)
        return consumer

    def topics(self) -> set[str]:
        return set(self._loop.run(self._admin.list_topics))

    def partitions(self, topic: str) -> int:
        described = self._loop.run(self._admin.describe_topics)
        return sum(len(each["partitions"]) for each in described if each["topic"] == topic)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, replicas: int = 1
    ) -> None:
        new = NewTopic(topic, partitions, replicas, topic_configs=dict(configs or {}))
        answer = self._loop.run(lambda: self._admin.create_topics([new]))
        for _, code, detail in answer.topic_errors:
            check(code, detail)

    def delete_topic(self, topic: str) -> None:
        answer = self._loop.run(lambda: self._admin.delete_topics([topic]))
        for _, code in answer.topic_error_codes:
            check(code, topic)

    def add_partitions(self, topic: str, total: int) -> None:
        self._loop.run(lambda: self._admin.create_partitions({topic: NewPartitions(total)}))

    def configs(self, topic: str) -> dict[str, Config]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._loop.run(lambda: self._admin.describe_configs([resource]))
        ((code, detail, _, _, entries),) = answer.resources
        check(code, detail)
        return {entry[0]: Config(value=entry[1], is_default=_is_default(entry[3])) for entry in entries}

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        raise NotImplementedError(self.CANNOT["incremental configs"])

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        (answer,) = self._loop.run(lambda: self._admin.alter_configs([resource]))
        for code, detail, _, _ in answer.resources:
            check(code, detail)

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        wanted = aiokafka.TopicPartition(*partition)
        return self._loop.run(lambda: self._admin.delete_records({wanted: RecordsToDelete(before)}))[wanted]

    def offset(
        self, partition: TopicPartition, at: OffsetAt, isolation: Isolation = "read_uncommitted"
    ) -> int:
        consumer = self.consumer(ConsumerOptions(isolation=isolation))
        return consumer.offset(partition, at)

    def groups(self) -> set[str]:
        return {group[0] for group in self._loop.run(self._admin.list_consumer_groups)}

    def group(self, group: str) -> Group:
        (answer,) = self._loop.run(lambda: self._admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = answer.groups
        check(code, group)
        # DescribeGroups 4, which names the instance ids, is newer than what aiokafka speaks.
        described = tuple(Member(instance_id=None, partitions=_assigned(member[4])) for member in members)
        return Group(state=state.lower(), members=described)

    def delete_group(self, group: str) -> None:
        raise NotImplementedError(self.CANNOT["delete group"])

    def delete_offsets(self, group: str, partition: TopicPartition) -> None:
        raise NotImplementedError(self.CANNOT["delete offsets"])

    def close(self) -> None:
        self._opened.close()


async def _started_admin(settings: Mapping[str, Any]) -> AIOKafkaAdminClient:
    admin = AIOKafkaAdminClient(**settings)
    await admin.start()
    return admin


def _is_default(source: int | bool) -> bool:
    # DescribeConfigs 0 says true or false; from version 1 on, source 5 is the default.
    return source if isinstance(source, bool) else source == 5


def _assigned(assignment: bytes) -> frozenset[TopicPartition]:
    if not assignment:
        return frozenset()
    decoded = ConsumerProtocolMemberAssignment.decode(assignment)
    return frozenset(TopicPartition(topic, each) for topic, parts in decoded.assignment for each in parts)
