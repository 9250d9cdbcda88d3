"""kafka-python as a `Client`."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar

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

with warnings.catch_warnings():
    # kafka-python reads its schemas through a function that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import codec, errors
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec, OffsetTimestamp
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.structs import OffsetAndMetadata

Answer = TypeVar("Answer")

PATIENCE_MS = int(PATIENCE_S * 1000)
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
OFFSETS = {
    "earliest": OffsetSpec.EARLIEST,
    "latest": OffsetSpec.LATEST,
    "max_timestamp": OffsetSpec.MAX_TIMESTAMP,
}
CODECS = {
    "snappy": (codec.has_snappy, "python-snappy"),
    "lz4": (codec.has_lz4, "lz4"),
    "zstd": (codec.has_zstd, "zstandard"),
}
# Errors that kafka-python raises without Kafka's number.
LOCAL_ERRORS: Mapping[type[Exception], ErrorCode] = {
    errors.KafkaTimeoutError: ErrorCode.request_timed_out,
    errors.NoOffsetForPartitionError: ErrorCode.offset_out_of_range,
}


def refusal(error: errors.KafkaError) -> Refused:
    """The library's error in Kafka's words."""
    if type(error) in LOCAL_ERRORS:
        return Refused(LOCAL_ERRORS[type(error)], str(error))
    number = getattr(error, "errno", None)
    if number is None:
        return refusal_from_text(str(error))
    return Refused(ErrorCode(number), f"{type(error).__name__} {error}")


def refusal_from_text(text: str) -> Refused:
    """The error that kafka-python has only as a text with `[Error 40]` in it."""
    number = re.search(r"\[Error (\d+)\]", text)
    return Refused(ErrorCode(int(number[1])) if number else ErrorCode.unknown_server_error, text)


def ask(call: Callable[[], Answer]) -> Answer:
    """The call's answer, with the library's errors translated."""
    try:
        return call()
    except errors.KafkaError as failure:
        raise refusal(failure) from failure


def check(error: type[errors.KafkaError], detail: str) -> None:
    """Raise the error that an admin answer carries, if it carries one."""
    if error is not errors.NoError:
        raise refusal(error(detail))


class PykafkaProducer:
    """A `Producer` on `KafkaProducer`."""

    def __init__(self, bootstrap: str, options: ProducerOptions) -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "acks": "all" if options.acks == "all" else int(options.acks),
            "compression_type": None if options.compression == "none" else options.compression,
            "enable_idempotence": options.idempotent or options.transactional_id is not None,
            "linger_ms": options.linger_ms,
            "max_request_size": 50_000_000,
            "delivery_timeout_ms": PATIENCE_MS,
            "request_timeout_ms": PATIENCE_MS // 2,
            "max_block_ms": PATIENCE_MS,
        }
        if options.transactional_id is not None:
            settings["transactional_id"] = options.transactional_id
            settings["transaction_timeout_ms"] = options.transaction_timeout_ms
        self._producer = kafka.KafkaProducer(**settings)
        if options.transactional_id is not None:
            ask(self._producer.init_transactions)

    def send(self, topic: str, messages: Sequence[Message]) -> list[Sent]:
        sending = [ask(lambda m=message: self._send(topic, m)) for message in messages]
        self._producer.flush(PATIENCE_S)
        reports = [ask(lambda f=future: f.get(PATIENCE_S)) for future in sending]
        return [Sent(partition=report.partition, offset=report.offset) for report in reports]

    def _send(self, topic: str, message: Message) -> Any:
        return self._producer.send(
            topic,
            value=message.value,
            key=message.key,
            headers=list(message.headers),
            partition=message.partition,
            timestamp_ms=message.timestamp_ms,
        )

    def begin(self) -> None:
        ask(self._producer.begin_transaction)

    def send_offsets(self, consumer: "PykafkaConsumer", offsets: Mapping[TopicPartition, int]) -> None:
        positions = _positions(offsets)
        ask(lambda: self._producer.send_offsets_to_transaction(positions, consumer.raw.group_metadata()))

    def commit(self) -> None:
        ask(self._producer.commit_transaction)

    def abort(self) -> None:
        ask(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=1)


class PykafkaConsumer(kafka.ConsumerRebalanceListener):
    """A `Consumer` on `KafkaConsumer`."""

    def __init__(self, bootstrap: str, options: ConsumerOptions) -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": options.group,
            "auto_offset_reset": options.reset,
            "enable_auto_commit": False,
            "isolation_level": options.isolation,
            "partition_assignment_strategy": [ASSIGNORS[options.assignor]],
            "group_instance_id": options.instance_id,
            "session_timeout_ms": options.session_timeout_ms,
            "heartbeat_interval_ms": 200,
            "fetch_min_bytes": options.fetch_min_bytes,
            "max_partition_fetch_bytes": options.partition_max_bytes,
            "fetch_max_wait_ms": options.fetch_wait_ms,
        }
        self.raw = kafka.KafkaConsumer(**settings)
        self.assignments = 0

    def on_partitions_revoked(self, revoked: set[kafka.TopicPartition]) -> None:
        pass

    def on_partitions_assigned(self, assigned: set[kafka.TopicPartition]) -> None:
        self.assignments += 1

    def assign(self, *partitions: TopicPartition) -> None:
        self.raw.assign([kafka.TopicPartition(*each) for each in partitions])

    def subscribe(self, *topics: str) -> None:
        self.raw.subscribe(list(topics), listener=self)
        # Metadata that comes after the first join makes kafka-python join again, and when a poll times out in
        # that second join it forgets the assignment. So let the metadata come first.
        for topic in topics:
            self.raw.partitions_for_topic(topic)

    def poll(self, timeout_s: float) -> list[Received]:
        batches = ask(lambda: self.raw.poll(timeout_ms=int(timeout_s * 1000)))
        return [_received(record) for records in batches.values() for record in records]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.raw.seek(kafka.TopicPartition(*partition), offset)

    def position(self, partition: TopicPartition) -> int:
        return int(ask(lambda: self.raw.position(kafka.TopicPartition(*partition), timeout_ms=PATIENCE_MS)))

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(each.topic, each.partition) for each in self.raw.assignment())

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        ask(lambda: self.raw.commit(_positions(offsets), timeout_ms=PATIENCE_MS))

    def committed(self, partition: TopicPartition) -> int | None:
        wanted = kafka.TopicPartition(*partition)
        found = ask(lambda: self.raw.committed(wanted, timeout_ms=PATIENCE_MS))
        return None if found is None else int(found)

    def close(self) -> None:
        self.raw.close(autocommit=False, timeout_ms=5_000)


def _positions(offsets: Mapping[TopicPartition, int]) -> dict[kafka.TopicPartition, OffsetAndMetadata]:
    return {
        kafka.TopicPartition(*each): OffsetAndMetadata(offset, "", -1) for each, offset in offsets.items()
    }


def _received(record: Any) -> Received:
    return Received(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
        timestamp_ms=record.timestamp,
    )


class PykafkaClient:
    """A `Client` on kafka-python."""

    CANNOT: ClassVar[Mapping[str, str]] = {
        "fenced instance": "only its heartbeat gets the error; poll() continues without one",
        "idempotent after a refusal": "any batch that is refused for good ends its idempotent producer",
        "replace configs": "its AlterConfigs keeps the other settings by sending them again",
        **{
            name: f"kafka-python compresses so only with the package {package}, which is not installed"
            for name, (present, package) in CODECS.items()
            if not present()
        },
    }

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._opened = ExitStack()
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._opened.callback(self._admin.close)

    def producer(self, options: ProducerOptions = PRODUCER_DEFAULTS) -> PykafkaProducer:
        producer = PykafkaProducer(self._bootstrap, options)
        self._opened.callback(producer.close)
        return producer

    def consumer(self, options: ConsumerOptions = CONSUMER_DEFAULTS) -> PykafkaConsumer:
        consumer = PykafkaConsumer(self._bootstrap, options)
        self._opened.callback(consumer.close)
        return consumer

    def topics(self) -> set[str]:
        return set(ask(self._admin.list_topics))

    def partitions(self, topic: str) -> int:
        described = ask(self._admin.describe_topics)
        return sum(len(each["partitions"]) for each in described if each["name"] == topic)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, replicas: int = 1
    ) -> None:
        new = {
            topic: {
                "num_partitions": partitions,
                "replication_factor": replicas,
                "configs": dict(configs or {}),
            }
        }
        ask(lambda: self._admin.create_topics(new))

    def delete_topic(self, topic: str) -> None:
        ask(lambda: self._admin.delete_topics([topic]))

    def add_partitions(self, topic: str, total: int) -> None:
        ask(lambda: self._admin.create_partitions({topic: total}))

    def configs(self, topic: str) -> dict[str, Config]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        entries = ask(lambda: self._admin.describe_configs([resource], config_filter="all"))["topic"][topic]
        return {
            name: Config(value=entry["value"], is_default=entry["config_source"] == "DEFAULT_CONFIG")
            for name, entry in entries.items()
        }

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        operations = {name: ("DELETE" if value is None else "SET", value) for name, value in changes.items()}
        self._alter(ConfigResource(ConfigResourceType.TOPIC, topic, operations), incremental=True)

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        raise NotImplementedError(self.CANNOT["replace configs"])

    def _alter(self, resource: ConfigResource, *, incremental: bool) -> None:
        answer = ask(
            lambda: self._admin.alter_configs([resource], raise_on_unknown=False, incremental=incremental)
        )["topic"][resource.name]
        if answer != "OK":
            raise refusal_from_text(answer)

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        wanted = kafka.TopicPartition(*partition)
        return int(ask(lambda: self._admin.delete_records({wanted: before}))[wanted]["low_watermark"])

    def offset(
        self, partition: TopicPartition, at: OffsetAt, isolation: Isolation = "read_uncommitted"
    ) -> int:
        wanted = kafka.TopicPartition(*partition)
        spec = OffsetTimestamp(at) if isinstance(at, int) else OFFSETS[at]
        found = ask(lambda: self._admin.list_partition_offsets({wanted: spec}, isolation_level=isolation))
        return int(found[wanted].offset)

    def groups(self) -> set[str]:
        return {group["group_id"] for group in ask(self._admin.list_groups)}

    def group(self, group: str) -> Group:
        described = ask(lambda: self._admin.describe_groups([group]))[group]
        if described["error"]:
            raise refusal_from_text(described["error"])
        members = tuple(
            Member(instance_id=each["group_instance_id"], partitions=_assigned(each["member_assignment"]))
            for each in described["members"]
        )
        return Group(state=described["group_state"].lower(), members=members)

    def delete_group(self, group: str) -> None:
        answer = ask(lambda: self._admin.delete_groups([group]))[group]  # the name of an error's class
        if answer != "OK":
            raise refusal(getattr(errors, answer)(group))

    def delete_offsets(self, group: str, partition: TopicPartition) -> None:
        wanted = kafka.TopicPartition(*partition)
        check(ask(lambda: self._admin.delete_group_offsets(group, [wanted]))[wanted], str(partition))

    def close(self) -> None:
        self._opened.close()


def _assigned(assignment: Mapping[str, Any] | bytes) -> frozenset[TopicPartition]:
    if not assignment:
        return frozenset()
    return frozenset(
        TopicPartition(each["topic"], partition)
        for each in assignment["assigned_partitions"]
        for partition in each["partitions"]
    )
