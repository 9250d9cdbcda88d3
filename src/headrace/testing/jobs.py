"""Jobs in tests: given rows, run, expect rows.

>>> from headrace import App
>>> from headrace.testing import run
>>> app = App("shop")
>>> orders = app.stream("orders", "product string, amount double")
>>> @app.job(into=app.topic("large", key="product"))
... def large():
...     return orders.df.filter("amount > 100")
>>> run(large, {"orders": [{"product": "tea", "amount": 3.5}, {"product": "kettle", "amount": 120.0}]})
[{'product': 'kettle', 'amount': 120.0}]
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.client.errors import ProducerFenced
from headrace.errors import HeadraceError, Misuse
from headrace.testing.embedded import broker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from headrace.streams.job import Job
    from headrace.streams.job_run import JobRun
    from headrace.streams.run_context import RunContext

TOPIC_STEPS: Final = ("begun", "computed", "written", "marked", "committed")
"""The steps of a micro-batch of a job that writes to topics only."""
STEPS: Final = ("begun", "staged", "delivered", *TOPIC_STEPS[1:])
"""The steps of a micro-batch after which a job can be made to crash. The rows are `staged` and then
`delivered` if the job writes to sinks other than topics."""
TURN_MS: Final = 200
DELIVERY_S: Final = 30.0

Part = Mapping[str, "Sequence[Any]"]
"""Rows by topic. A row is a dict, written as JSON; bytes, text or None are written as they are; a pair is a
key and such a row, and an optional third element is the timestamp of the record."""


class Crash(ProducerFenced):
    """A deliberate crash. Like a fenced or killed process, it leaves its transaction open."""


class JobRows(list[dict[str, Any]]):
    """The rows that a job wrote to its first topic, in order, with its late rows and dead letters."""

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        *,
        dead: Sequence[dict[str, Any]] = (),
        late: Sequence[dict[str, Any]] = (),
        dropped: int = 0,
    ) -> None:
        super().__init__(rows)
        self.late = list(late)
        """The events in the job's late topic, with `window_start` and `window_end`."""
        self.dropped = dropped
        """The number of late rows, or of partial sums of a window and key, that were dropped."""
        self.dead = list(dead)
        """What is among the dead letters: `value` (the bytes) and `reason`; of rows that did not parse their
        `topic`, `partition` and `offset`, of rows that a target did not take its name and the `batch`."""


def run(
    job: Job,
    inputs: Part | Sequence[Part],
    *,
    batches: int = 1,
    crash: tuple[str, int] | None = None,
    spark: SparkSession | None = None,
) -> JobRows:
    """Run a job on a real broker, with real transactions, and return the rows that it writes.

    The rows of `inputs` are one micro-batch, or `batches` of about the same size; a list of inputs has one
    micro-batch per element. Event time comes from the rows and does not depend on the clock, with one
    exception: a time more than a day (`max_ahead`) after the timestamp of its record, which is now unless the
    row sets it, becomes a dead letter. After the last batch Spark closes the windows that the watermark has
    passed.

    `crash=("written", 1)` crashes the job after that step of that batch and restarts it: the rows have to be
    the same. Without `spark` the session of this process is used, or created.
    """
    _check_crash(crash)
    parts = _split(inputs, batches) if isinstance(inputs, Mapping) else list(inputs)
    with ExitStack() as stack:
        test_run = _TestRun(stack, job, crash, spark)
        for part in parts:
            test_run.write(part)
            test_run.process()
        return test_run.results()


class _TestRun:
    """A broker, a session and a folder for one run of a job."""

    def __init__(
        self, stack: ExitStack, job: Job, crash: tuple[str, int] | None, spark: SparkSession | None
    ) -> None:
        from headrace.client.cluster import Cluster
        from headrace.streams.explanation import silence_spark
        from headrace.streams.run_context import RunContext

        silence_spark()

        bootstrap = stack.enter_context(broker()).bootstrap
        temporary = tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True)
        self._job = job
        self._crash = crash
        self._crashed = False
        self._run_context: RunContext = RunContext(
            spark=spark or _session(),
            bootstrap=bootstrap,
            cluster=stack.enter_context(Cluster.of(bootstrap)),
            state=Path(stack.enter_context(temporary)),
        )
        self._newest = self._run()
        self._provided: set[str] = set()
        self._dropped = 0

    def write(self, part: Part) -> None:
        """Write the rows to their topics; each has one partition, so that their order is kept."""
        from confluent_kafka import Producer

        from headrace.client.bootstrap import client_config

        topics = {*part, *(topic.name for topic in self._job.into.topics)}
        # The first time, the job's function is called to find the other topics that it reads.
        self._provide(topics if self._provided else topics | {*self._newest.inputs()})
        producer = Producer(client_config(self._run_context.bootstrap))
        for topic, rows in part.items():
            for row in rows:
                key, value, *moment = row if isinstance(row, tuple) else (None, row)
                time_ms = round(moment[0].timestamp() * 1000) if moment else 0  # 0: now
                producer.produce(topic, key=key, value=_encoded(value), partition=0, timestamp=time_ms)
        if producer.flush(DELIVERY_S):
            raise HeadraceError("the broker of the test did not take all rows in time")

    def _provide(self, topics: set[str]) -> None:
        from headrace.client.topics import NewTopic

        fresh = topics - self._provided
        configs = {"retention.ms": "-1"}  # records may have times of long ago
        self._run_context.provide(
            [NewTopic(name=name, partitions=1, configs=configs) for name in sorted(fresh)]
        )
        self._provided |= fresh

    def process(self) -> None:
        """Run the job over the available records, with the crash if one is due."""
        job_run = self._run()
        try:
            self._finish(job_run)
        except Exception:
            if not self._crashed or self._crash is None:
                raise
            self._crash = None
            self._finish(self._run())
        finally:
            job_run.stop()

    def _finish(self, job_run: JobRun) -> None:
        self._newest = job_run
        job_run.start()
        while job_run.is_active():
            job_run.wait(TURN_MS)
        self._dropped += job_run.metrics.late + job_run.metrics.left_out

    def _run(self) -> JobRun:
        from headrace.streams.job_run import JobRun

        return JobRun(self._job, self._run_context, once=True, steps=self._step)

    def _step(self, step: str, batch: int) -> None:
        if (step, batch) == self._crash and not self._crashed:
            self._crashed = True
            raise Crash(f"a crash on purpose after step {step!r} of batch {batch}")

    def results(self) -> JobRows:
        """What the job wrote."""
        if self._crash is not None:
            step, batch = self._crash
            raise Misuse(f"the job ended without a step {step!r} of batch {batch}: there was no such batch.")
        return JobRows(self._written(), dead=self._dead(), late=self._late(), dropped=self._dropped)

    def _written(self) -> list[dict[str, Any]]:
        if not self._job.into.topics:
            return []  # tests query the targets of sinks themselves
        topic = self._job.into.topics[0]
        typed = {}
        if topic.format == "json":
            schema = self._newest.output_schema().json()
            typed = {"valueFormat": "json", "valueSchema": schema}
        rows = self._read(topic.name, typed)
        if not typed:
            return [{"key": row["key"], "value": row["value"]} for row in rows]
        return [row["value"] for row in rows]

    def _late(self) -> list[dict[str, Any]]:
        topic = self._job.late_topic
        if topic is None or self._is_empty(topic):
            return []
        return [json.loads(row["value"]) for row in self._read(topic, {})]

    def _is_empty(self, topic: str) -> bool:
        """Whether a topic with one partition is empty, without a Spark query."""
        from headrace.client.offsets import LATEST, list_offsets
        from headrace.client.partition import TopicPartition

        partition = TopicPartition(topic, 0)
        return not list_offsets(self._run_context.cluster, {partition: LATEST})[partition]

    def _dead(self) -> list[dict[str, Any]]:
        if self._is_empty(self._job.dead_topic):
            return []
        letters = []
        for row in self._read(self._job.dead_topic, {"includeHeaders": "true"}):
            headers = {
                header["key"]: header["value"].decode() for header in row["headers"] if header["key"] != "row"
            }
            numbers = {
                name: int(headers[name]) for name in ("partition", "offset", "batch") if name in headers
            }
            letters.append({"value": row["value"], **headers, **numbers})
        return letters

    def _read(self, topic: str, options: dict[str, str]) -> list[dict[str, Any]]:
        reader = self._run_context.spark.read.format("headrace").options(**options)
        reader = reader.option("kafka.bootstrap.servers", self._run_context.bootstrap)
        # By Arrow, which keeps the zone of times: those of `collect` depend on the machine's.
        rows: list[dict[str, Any]] = (
            reader.option("subscribe", topic).load().orderBy("partition", "offset").toArrow().to_pylist()
        )
        return rows


def _check_crash(crash: tuple[str, int] | None) -> None:
    if crash is not None and crash[0] not in STEPS:
        raise Misuse(f"crash={crash!r}: the steps are {', '.join(STEPS)}; write crash=('written', 0).")


def _split(inputs: Part, batches: int) -> list[Part]:
    """The inputs in `batches` parts; the order within each topic is kept.

    >>> _split({"t": [1, 2, 3]}, 2)
    [{'t': [1]}, {'t': [2, 3]}]
    """
    if batches < 1:
        raise Misuse("batches is at least 1.")
    return [
        {
            topic: rows[len(rows) * part // batches : len(rows) * (part + 1) // batches]
            for topic, rows in inputs.items()
        }
        for part in range(batches)
    ]


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    from headrace.spark.session import open_session

    return SparkSession.getActiveSession() or open_session("headrace-testing")


def _encoded(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON: write the row as bytes")
