"""A view made again from the log beside the one that is read, which then changes to what the new one says.

```text
 headrace job reset revenue --to start --rebuild      then, on the next start of the job:

 old job ──▶ revenue ◀── readers         1. the job runs aside, with a state of its own, into revenue.rebuild
 new job ──▶ revenue.rebuild             2. when it has caught up, the old job is asked to end
                │
                └─ differences ─▶ revenue   3. one transaction makes the view what the new rows are
 new job ──▶ revenue                        4. the job goes on with the new state, into the view
```

Readers see the old rows until the third step and the new ones from then on, with nothing in between: change
feeds, queries, jobs and other Kafka clients get the differences as changes like any others. A rebuild that is
cut goes on where it was; one that is cut between the third step and the fourth begins anew, and finds no
differences.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.client.bootstrap import client_config, produce
from headrace.errors import HeadraceError, Misuse
from headrace.feeds.view_log import ViewLog, refuse, warn
from headrace.streams.job_folder import REBUILD, JobIsRunning
from headrace.streams.job_run import JobRun
from headrace.streams.output_targets import OutputTargets
from headrace.streams.source import is_local_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.engine.explain import ExplainedPlan
    from headrace.feeds.view_log import Skip, ViewRecord
    from headrace.streams.job import Job
    from headrace.streams.job_folder import JobFolder
    from headrace.streams.report import JobMetrics
    from headrace.streams.run_context import RunContext
    from headrace.streams.view import View

NEARLY_S: Final = 30.0
"""A pass that took no longer than this has caught up well enough for the old job to be stopped."""
TRANSACTION_S: Final = 600

Record: TypeAlias = "tuple[int, bytes | None, bytes | None]"
"""Partition, key, and the value, which is None where the key is to go."""


class RebuildFailed(HeadraceError):
    """The broker did not take the differences between the old view and the new one."""


def run_of(job: Job, run_context: RunContext, *, once: bool) -> JobRun | Rebuild:
    """The job as it is to be run: as it is, or rebuilt beside its view first."""
    folder = run_context.folder(job)
    return (
        Rebuild(job, run_context, once=once)
        if folder.beside.is_reset
        else JobRun(job, run_context, once=once)
    )


class Rebuild:
    """A job that is first run aside, until its view can change over."""

    def __init__(self, job: Job, run_context: RunContext, *, once: bool) -> None:
        self.job = job
        self._run_context = run_context
        self._own = JobRun(job, run_context, once=once)
        self._folder = self._own.folder
        self._run: JobRun | None = None
        self._view = _checked_view(job, self._folder)
        self._has_caught_up = False
        self._is_over = False
        self._started_s = 0.0

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def metrics(self) -> JobMetrics:
        """What the run that is under way has done."""
        return (self._run or self._own).metrics

    @property
    def folder(self) -> JobFolder:
        """Where the job keeps what it needs to go on."""
        return self._folder

    def explained(self) -> ExplainedPlan | None:
        """The plan of the run that is under way."""
        return self._current().explained()

    def inputs(self) -> tuple[str, ...]:
        """The topics that the job reads."""
        return self._own.inputs()

    def start(self) -> None:
        """Begin aside, or where the job was left off."""
        self._has_caught_up = False
        self._go(self._own if self._is_over else self._run_aside())

    def is_active(self) -> bool:
        """Whether the job runs, aside or in its place; raises what ended it, if that was a failure."""
        if self._run is not None and self._run.is_active():
            return True
        if self._is_over or self._was_asked_to_stop():
            return False
        try:
            self._next_step()
        except BaseException:
            self._folder.release()
            raise
        return True

    def is_settled(self) -> bool:
        """Whether the query has opened its sources."""
        return self._run is None or self._run.is_settled()

    def ask_to_stop(self) -> None:
        """Let the current batch be the last one; what was done aside is kept."""
        self._current().ask_to_stop()

    def stop(self) -> None:
        """End now."""
        self._current().stop()
        self._folder.release()

    def _current(self) -> JobRun:
        return self._run or self._own

    def _was_asked_to_stop(self) -> bool:
        return self._current().is_stopping

    def _run_aside(self) -> JobRun:
        return JobRun(self._aside, self._run_context, once=True, is_known=False)

    @property
    def _aside(self) -> Job:
        """The job with other names for all that it writes."""
        late = self.job.late_topic
        return replace(
            self.job,
            name=f"{self.job.name}.{REBUILD}",
            into=OutputTargets((replace(self._view, name=self._topic, partitions=self._partitions()),)),
            dead_letter_topic=f"{self.job.dead_topic}.{REBUILD}",
            late_topic=None if late is None else f"{late}.{REBUILD}",
        )

    @property
    def _topic(self) -> str:
        # A rebuild that begins anew finds nothing of the one before.
        return f"{self._view.name}.{REBUILD}-{self._folder.beside.beginning().generation}"

    def _partitions(self) -> int | None:
        """As many as the view has: so a key is in the same partition of both."""
        found = self._run_context.cluster.topics((self._view.name,))
        return len(found[self._view.name].partitions) if found else self._view.partitions

    def _go(self, run: JobRun) -> None:
        self._started_s = time.monotonic()
        self._run = run
        run.start()

    def _next_step(self) -> None:
        """One pass is over: another one, the wait for the old job, or the change."""
        if self._has_caught_up:
            self._change_over()
            self._go(self._own)
        elif time.monotonic() - self._started_s > NEARLY_S or self._takes_over():
            # The last pass begins when nobody else writes the view any more.
            self._has_caught_up = self._folder.is_ours
            self._go(self._run_aside())

    def _takes_over(self) -> bool:
        """Whether no other process runs the job; one that does is asked to end."""
        try:
            self._folder.hold()
        except JobIsRunning:
            self._folder.ask_for()
            return False
        return True

    def _change_over(self) -> None:
        """The view becomes what was made aside, and the job's state is that of it."""
        aside, beside = self._aside, self._folder.beside
        self._own.provide()
        write_differences(
            self._run_context,
            old=self._view.name,
            new=aside.into.name,
            writer=f"headrace.{self.job.full_name}",
        )
        with self._folder.barrier.batch():
            self._folder.adopt(Path(beside.checkpoint))
            beside.delete()
        self._is_over = True
        late = () if aside.late_topic is None else (aside.late_topic,)
        _delete_topics(self._run_context.bootstrap, {aside.into.name, aside.dead_topic, *late})


def write_differences(run_context: RunContext, *, old: str, new: str, writer: str) -> int:
    """Let the rows of topic `old` be those of `new`, in one transaction; how many differed.

    `writer` is the transactional id of the job: a process that still writes under it is shut out.
    """
    from confluent_kafka import KafkaException, Producer

    producer = Producer(
        client_config(
            run_context.bootstrap,
            {"transactional.id": writer, "transaction.timeout.ms": TRANSACTION_S * 1000},
        )
    )
    count = 0
    try:
        producer.init_transactions(TRANSACTION_S)
        producer.begin_transaction()
        for partition, key, value in _differences(run_context, old, new):
            produce(producer, old, partition=partition, key=key, value=value)
            count += 1
        producer.commit_transaction(TRANSACTION_S)
    except KafkaException as fault:
        raise RebuildFailed(f"the view {old!r} could not be changed to what was rebuilt: {fault}.") from fault
    return count


def _differences(
    run_context: RunContext, old: str, new: str
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    before, after = ViewLog(run_context.cluster, old), ViewLog(run_context.cluster, new)
    ends = zip(before.offset_ranges(), after.offset_ranges(), strict=True)
    for partition, (there, here) in enumerate(ends):
        # What cannot be read in the old view is replaced; what was just written must be readable.
        stale, fresh = _newest(before, partition, there, warn), _newest(after, partition, here, refuse)
        yield from ((partition, key, None) for key in stale if key not in fresh)
        for key, entry in fresh.items():
            if key not in stale or stale[key].value != entry.value:
                yield partition, key, entry.value


def _newest(
    log: ViewLog, partition: int, extent: tuple[int, int], skip: Skip
) -> dict[bytes | None, ViewRecord]:
    first, end = extent
    return {entry.key: entry for entry in (log.rows(partition, first, end, skip) if first < end else [])}


def _delete_topics(bootstrap: str, names: set[str]) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(client_config(bootstrap))
    for done in admin.delete_topics(list(names)).values():
        done.result(30)


def _checked_view(job: Job, folder: JobFolder) -> View:
    if not job.into.is_one_topic or not job.into.views:
        problem = "a topic that is no view: its rows do not replace one another"
        if not job.into.is_one_topic:
            problem = f"{job.into.name}, and not a view alone"
        raise Misuse(
            f"job {job.name!r} writes {problem}, so it cannot be rebuilt beside it. Delete "
            f"{folder.beside.path}, and reset the job without --rebuild."
        )
    if not is_local_folder(folder.checkpoint):
        raise Misuse(
            f"job {job.name!r} has its checkpoint in {folder.checkpoint}: only one in a folder can be "
            "exchanged for one that was made aside. Reset the job without --rebuild."
        )
    return job.into.views[0]
