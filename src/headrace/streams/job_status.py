"""What running jobs say about themselves, and requests to restart or reset them, by way of two topics.

| topic | records |
|---|---|
| `headrace.jobs` | compacted, by job: a status every two seconds while it changes, and the plan |
| `headrace.job-requests` | kept for an hour: requests of the console to the process that runs the job |

The process of `headrace run` writes the first and follows the second, so that both work on clusters, through
the one connection that a job has in any case, and are protected by the broker's ACLs: who may write to the
topic of requests may restart and reset jobs. A process reads requests from its own start on: an older one was
for another process. The status names the last request that was done.

A broker that refuses the topics (ACLs) is no reason to stop a job: the status is then not published.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

from headrace.client.cluster import Cluster
from headrace.client.errors import OffsetOutOfRange
from headrace.client.fetch import committed_records, fetch_batches, skip_unreadable
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import HeadraceError, Misuse
from headrace.protocol.records import NewRecord, encode_batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.capture.process import CaptureProcess
    from headrace.engine.explain import ExplainedPlan
    from headrace.protocol.records import Record
    from headrace.streams.job_run import JobRun
    from headrace.streams.rebuild import Rebuild
    from headrace.streams.supervisor import Supervisor

STATUS_TOPIC: Final = "headrace.jobs"
REQUEST_TOPIC: Final = "headrace.job-requests"
STATUSES: Final = TopicPartition(STATUS_TOPIC, 0)
REQUESTS: Final = TopicPartition(REQUEST_TOPIC, 0)
PLAN: Final = "/plan"
"""The suffix of a job's name in the key of its plan."""
EVERY_S: Final = 2.0
KEEP_ALIVE_S: Final = 10.0
"""How often a status is written that has not changed."""
STALE_S: Final = 40.0
"""A status that is older is that of a process that has ended without saying so."""
WAIT_MS: Final = 250
TIMEOUT_S: Final = 5.0
TOPICS: Final = (
    NewTopic(
        name=STATUS_TOPIC,
        partitions=1,
        configs={
            "cleanup.policy": "compact",
            "segment.bytes": str(2 << 20),
            "min.cleanable.dirty.ratio": "0.1",
        },
    ),
    NewTopic(name=REQUEST_TOPIC, partitions=1, configs={"retention.ms": "3600000"}),
)

logger = logging.getLogger(__name__)

Action = Literal["restart", "reset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A request to the process that runs a job."""

    job: str
    """The full name, `app.job`."""
    action: Action
    kind: str = "start"
    """Where a job that is reset begins: start, end, offset or time."""
    value: int = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    user: str | None = None

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read a request; raises ValueError if it is none."""
        try:
            request = cls(**json.loads(text))
        except TypeError as fault:
            raise ValueError(str(fault)) from None
        check_action(request)
        return request


def check_action(request: JobRequest) -> None:
    """Pass if the request has an action and a position that exist."""
    if request.action not in get_args(Action) or request.kind not in ("start", "end", "offset", "time"):
        raise Misuse(
            f"a job is restarted, or reset to start, end, an offset or a time, not {request.kind!r}."
        )


def send_request(cluster: Cluster, request: JobRequest, *, user: str | None = None) -> None:
    """Write a request; raises `RequestRefused` if the user may not."""
    create_missing_topics(cluster)
    value = json.dumps({**asdict(request), "user": user}).encode()
    producer = BatchProducer(cluster)
    producer.send(REQUESTS, encode_batch([NewRecord(request.job.encode(), value, _now_ms())]))
    producer.flush()


def create_missing_topics(cluster: Cluster) -> None:
    """Create the two topics where they do not exist."""
    existing = cluster.topics((STATUS_TOPIC, REQUEST_TOPIC))
    create_topics(cluster, [topic for topic in TOPICS if topic.name not in existing])


class StatusReader:
    """The newest record of each key of the topic of statuses; each call of `read` continues the last one."""

    def __init__(self) -> None:
        self._offset: int | None = None
        self._topic_id: str | None = None
        self._newest: dict[str, dict[str, Any]] = {}

    def read(self, cluster: Cluster) -> Mapping[str, dict[str, Any]]:
        """All statuses and plans up to now."""
        topic = cluster.topics((STATUS_TOPIC,)).get(STATUS_TOPIC)
        if topic is None:
            return {}
        if topic.topic_id != self._topic_id:
            self._offset, self._newest, self._topic_id = None, {}, topic.topic_id
        end = list_offsets(cluster, {STATUSES: LATEST})[STATUSES]
        while self._offset is None or self._offset < end:
            try:
                self._read_on(cluster, end)
            except OffsetOutOfRange:
                self._offset, self._newest = None, {}
        return self._newest

    def _read_on(self, cluster: Cluster, end: int) -> None:
        if self._offset is None:
            self._offset = list_offsets(cluster, {STATUSES: EARLIEST})[STATUSES]
        fetched = fetch_batches(cluster, {STATUSES: self._offset}, max_wait_ms=100)
        if not fetched:
            self._offset = end
        for part in fetched:
            for record in skip_unreadable(committed_records(STATUSES, part.batches, part.aborted)):
                self._note(record)
            self._offset = part.next_offset

    def _note(self, record: Record) -> None:
        name = (record.key or b"").decode(errors="replace")
        try:
            status = json.loads(record.value or b"null")
        except ValueError:
            return
        if _is_status(status):
            self._newest[name] = status
        else:
            self._newest.pop(name, None)


def _is_status(value: Any) -> bool:
    """Whether this is what a process writes: readers rely on these fields."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("updated_ms"), int)
        and (value.get("kind") == "plan" or isinstance(value.get("state"), str))
    )


class JobStatusThread:
    """Publishes the statuses of one process, and receives the requests to it, from enter to exit."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self.statuses: Mapping[str, dict[str, Any]] = {}
        """By job: replaced, and never changed, by another thread."""
        self._plans: dict[str, dict[str, Any]] = {}
        self._new_plans: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[JobRequest] = queue.SimpleQueue()
        self._written: dict[str, tuple[float, dict[str, Any]]] = {}
        self._offset: int | None = None
        self._origin = {"host": socket.gethostname(), "pid": os.getpid(), "started_ms": _now_ms()}
        self._thread = threading.Thread(target=self._run, name="job-status", daemon=True)

    def publish_plan(self, name: str, plan: dict[str, Any]) -> None:
        """Write the plan of a job."""
        self._plans[f"{name}{PLAN}"] = plan
        self._new_plans.put(f"{name}{PLAN}")

    def requests(self) -> list[JobRequest]:
        """The requests since the last call."""
        found = []
        while not self._requests.empty():
            found.append(self._requests.get())
        return found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        wait_s = 0.0
        while True:
            is_last = self._ended.wait(wait_s)
            try:
                with Cluster.of(self._bootstrap, client_id="headrace-status", timeout_s=TIMEOUT_S) as cluster:
                    self._follow(cluster)
                    return
            except HeadraceError as fault:
                logger.info("The status of jobs is not published now: %s", fault)
                wait_s = KEEP_ALIVE_S
            if is_last:
                return

    def _follow(self, cluster: Cluster) -> None:
        """Write statuses and wait for requests, until the end or an error."""
        create_missing_topics(cluster)
        producer = BatchProducer(cluster)
        for key in list(self._plans):
            self._new_plans.put(key)
        self._written.clear()
        due_s = 0.0
        while True:
            is_last = self._ended.is_set()
            if is_last or time.monotonic() >= due_s:
                self._write(producer)
                due_s = time.monotonic() + EVERY_S
            if is_last:
                return
            self._receive(cluster)

    def _write(self, producer: BatchProducer) -> None:
        now_s, now_ms = time.monotonic(), _now_ms()
        records = {}
        while not self._new_plans.empty():
            key = self._new_plans.get()
            records[key] = {"kind": "plan", **self._plans[key], "updated_ms": now_ms}
        for name, status in self.statuses.items():
            written_s, before = self._written.get(name, (0.0, None))
            if status != before or now_s - written_s >= KEEP_ALIVE_S:
                records[name] = {**status, **self._origin, "updated_ms": now_ms}
                self._written[name] = (now_s, status)
        if records:
            batch = [
                NewRecord(key.encode(), json.dumps(value).encode(), now_ms) for key, value in records.items()
            ]
            producer.send(STATUSES, encode_batch(batch))
            producer.flush()

    def _receive(self, cluster: Cluster) -> None:
        """Wait for requests, for a quarter of a second at most."""
        if self._offset is None:
            self._offset = list_offsets(cluster, {REQUESTS: LATEST})[REQUESTS]
        try:
            fetched = fetch_batches(cluster, {REQUESTS: self._offset}, max_wait_ms=WAIT_MS)
        except OffsetOutOfRange:
            self._offset = None
            return
        for part in fetched:
            for record in skip_unreadable(committed_records(REQUESTS, part.batches, part.aborted)):
                try:
                    self._requests.put(JobRequest.from_json(record.value or b""))
                except (ValueError, Misuse) as fault:
                    logger.warning("Offset %d of %s is no request: %s", record.offset, REQUEST_TOPIC, fault)
            self._offset = part.next_offset


class RunStatus:
    """What one run of an application publishes about its jobs and captures; `turn` also does the requests."""

    def __init__(
        self,
        bootstrap: str,
        app: str,
        supervisor: Supervisor,
        runs: Sequence[JobRun | Rebuild],
        captures: Sequence[CaptureProcess],
    ) -> None:
        self._app = app
        self._supervisor = supervisor
        self._runs = {f"{app}.{run.name}": run for run in runs}
        self._captures = captures
        self._thread = JobStatusThread(bootstrap)
        self._planned: dict[str, int] = {}
        """By job, the start whose plan is published."""
        self._done: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        self._thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._note(is_over=True)
        self._thread.__exit__()

    def turn(self) -> None:
        """Do the requests, and note how the jobs are doing."""
        for request in self._thread.requests():
            if request.job in self._runs:
                self._do(request, self._runs[request.job])
        for name, run in self._runs.items():
            charge = self._supervisor.charges.get(run.name)
            if charge is None or self._planned.get(name) == charge.starts:
                continue
            if charge.state.value == "running" and (plan := run.explained()) is not None:
                self._thread.publish_plan(name, _plan(run, plan))
                self._planned[name] = charge.starts
        self._note()

    def _do(self, request: JobRequest, run: JobRun | Rebuild) -> None:
        if run.name not in self._supervisor.charges:
            return
        by = request.user or "an unnamed user"
        logger.warning("Job %s: %s, as %s asked by the console.", request.job, request.action, by)
        done = {"id": request.id, "action": request.action, "at_ms": _now_ms(), "user": request.user}

        def between() -> None:
            if request.action == "reset":
                run.folder.reset(kind=request.kind, value=request.value)  # type: ignore[arg-type]  # checked
            self._done[request.job] = done

        self._supervisor.restart(run.name, between=between)

    def _note(self, *, is_over: bool = False) -> None:
        now_s = time.monotonic()
        statuses = {
            name: self._job_status(name, run, now_s, is_over=is_over) for name, run in self._runs.items()
        }
        for capture in self._captures:
            status = self._charge(capture.name, is_over=is_over)
            figures = capture.metrics.to_dict()
            name = capture.metrics.name
            statuses[f"{self._app}/capture/{name}"] = {
                **figures, **status, "kind": "capture", "capture": name, "app": self._app,
            }  # fmt: skip
        self._thread.statuses = statuses

    def _job_status(self, name: str, run: JobRun | Rebuild, now_s: float, *, is_over: bool) -> dict[str, Any]:
        charge, metrics = self._charge(run.name, is_over=is_over), run.metrics
        report = metrics.report(
            job=run.name, into=run.job.into.name, state=charge["state"], reason=charge["reason"], now_s=now_s
        )
        return {
            **asdict(report),
            "kind": "job",
            "app": self._app,
            "restarts": charge["restarts"],
            "phases_ms": metrics.batch_phases_ms,
            "rows_out": dict(metrics.rows_out),
            "request": self._done.get(name),
        }

    def _charge(self, name: str, *, is_over: bool) -> dict[str, Any]:
        charge = self._supervisor.charges.get(name)
        if charge is None:
            return {"state": "stopped" if is_over else "waiting", "reason": "", "restarts": 0}
        state = "stopped" if is_over and charge.state.value != "failed" else charge.state.value
        return {"state": state, "reason": charge.reason, "restarts": max(charge.starts - 1, 0)}


def _plan(run: JobRun | Rebuild, plan: ExplainedPlan) -> dict[str, Any]:
    views, into = {view.name for view in run.job.into.views}, run.job.into
    return {
        **plan.to_json(),
        "purpose": run.job.purpose,
        "place": run.job.place,
        "inputs": list(run.inputs()),
        "outputs": [
            *({"name": each.name, "kind": "view" if each.name in views else "topic"} for each in into.topics),
            *({"name": sink.name, "kind": "sink"} for sink in into.sinks),
        ],
        "dead_topic": run.job.dead_topic,
        "late_topic": run.job.late_topic,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
