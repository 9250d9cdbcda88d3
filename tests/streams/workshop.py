"""A broker and a state folder for applications, run as `headrace run` does."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace import App
from headrace.streams.report import Report
from headrace.streams.runner import Runner, RunOptions
from headrace.streams.supervisor import JobEvent


class Recorder:
    """A display that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.news: list[JobEvent] = []
        self.reports: Sequence[Report] = ()

    def say(self, text: str) -> None:
        self.said.append(text)

    def tell(self, news: JobEvent) -> None:
        self.news.append(news)

    def show(self, reports: Sequence[Report]) -> None:
        self.reports = reports

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Workshop:
    """A broker and a state folder for applications."""

    def __init__(self, bootstrap: str, state: Path) -> None:
        self.bootstrap = bootstrap
        self.state = state
        self.recorder = Recorder()

    def write(self, topic: str, *values: dict[str, Any] | bytes) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            producer.produce(topic, value if isinstance(value, bytes) else json.dumps(value).encode())
        assert producer.flush(100) == 0

    def read(self, topic: str) -> list[bytes]:
        """All committed records of a topic."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "test", "enable.partition.eof": True}
        )
        partitions = consumer.list_topics(topic, timeout=100).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        values, ended = [], 0
        while ended < len(partitions):
            message = consumer.poll(100)
            assert message is not None, f"timed out waiting for records of {topic}"
            if message.error():
                ended += 1
            else:
                values.append(message.value() or b"")
        consumer.close()
        return values

    def create(self, *topics: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = [NewTopic(topic, num_partitions=1, replication_factor=1) for topic in topics]
        for done in admin.create_topics(wanted).values():
            done.result(100)

    def partitions(self, *topics: str) -> list[int]:
        """How many partitions topics have."""
        found = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=30).topics
        return [len(found[topic].partitions) for topic in topics]

    def run_until_failed(self, app: App) -> int:
        """Run without `once`, until no job is left that runs."""
        self.recorder = Recorder()
        return Runner(RunOptions(app=app, broker=self.bootstrap, state=self.state), self.recorder).run()

    def run_once(self, app: App) -> int:
        self.recorder = Recorder()
        order = RunOptions(app=app, once=True, broker=self.bootstrap, state=self.state)
        return Runner(order, self.recorder).run()

    @contextmanager
    def running(self, app: App, **options: Any) -> Iterator[Runner]:
        """A run in a thread of its own, stopped cleanly at the end."""
        self.recorder = Recorder()
        order = RunOptions(app=app, broker=self.bootstrap, state=self.state, **options)
        runner = Runner(order, self.recorder)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(runner.run()))
        thread.start()
        try:
            yield runner
        finally:
            runner.stop()
            thread.join(100)
        assert codes == [0]
