"""One job as a streaming query: made, compared with its checkpoint, started, watched and stopped."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.client.topics import NewTopic
from headrace.durations import interval_of
from headrace.errors import HeadraceError, Misuse
from headrace.spark.progress import create_progress_topic, read_mark
from headrace.spark.shared_folder import check_shared
from headrace.streams.building import Building, RowsWanted
from headrace.streams.dead_letters import Counts, DeadLetters, observed_counts
from headrace.streams.description import Description
from headrace.streams.explanation import is_permanent, sentence_of
from headrace.streams.failed_rows import FailedRows
from headrace.streams.handover import Handover, fitting_batches, handover_of
from headrace.streams.job_folder import JobTakenOver
from headrace.streams.late import LateRows, dropped_rows, left_out
from headrace.streams.outputs import Outputs
from headrace.streams.plan import input_topics, stateful_operators
from headrace.streams.report import Tally, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from headrace.spark.transactional_batch import Deliver
    from headrace.spark.transactional_sink import Batch, TransactionalSink
    from headrace.streams.job import Job
    from headrace.streams.job_folder import JobFolder
    from headrace.streams.rows import Rows
    from headrace.streams.stream import Stream
    from headrace.streams.workplace import Starts, Workplace

FIRST_STEP: Final = "begun"
WATERMARK_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
OPENING_SOURCES: Final = "Initializing sources"
"""The status that Spark gives to a query whose Python processes are being started."""


class Stopping(HeadraceError):
    """The job was asked to stop, and the batch that would have been the next was not begun."""


class BadJob(Misuse):
    """A job whose definition Python or Spark refuses: it is the same each time that it is started."""


class JobRun:
    """A job at a workplace; each `start` goes on where the last run ended."""

    def __init__(
        self,
        job: Job,
        workplace: Workplace,
        *,
        once: bool = False,
        steps: Callable[[str, int], None] | None = None,
        is_known: bool = True,
    ) -> None:
        self.job = job
        self.tally = Tally()
        self._workplace = workplace
        self._folder = workplace.folder(job)
        self._once = once
        self._steps = steps
        self._is_known = is_known
        """Whether readers are to find the view that the job writes."""
        self._stopping = threading.Event()
        self._is_taken_over = False
        self._rows: Rows | None = None
        self._query: StreamingQuery | None = None
        self._sink: TransactionalSink | None = None
        self._outputs: Outputs | None = None
        self._execution: Any = None
        self._seen = -1
        self._started: Building | None = None
        self._table_records = 0

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def folder(self) -> JobFolder:
        """Where the job keeps what it needs to go on."""
        return self._folder

    def inputs(self) -> tuple[str, ...]:
        """The topics that the job reads, tables included: its function is called to find out."""
        try:
            building, rows = self._built()
        except Exception as error:
            self._refuse(error)
            raise
        topics = input_topics(rows.frame)
        return tuple(dict.fromkeys([*topics, *building.plan.followed]))

    def output_schema(self) -> StructType:
        """The columns of the job's rows; a run that was started need not call its function for them."""
        rows = self._rows or self._built()[1]
        return self.job.into.topics[0].shown(rows.frame).schema

    def start(self) -> None:
        """Compare the job with its checkpoint, make the topics that are missing, and start the query."""
        self._folder.hold()
        try:
            building, rows = self._build()
            self._rows = rows
            building.plan.check_all()
            check_shared(self._workplace.spark, self._folder.checkpoint)
            self._folder.accept(self._describe(building, rows))
            create_progress_topic(self._workplace.cluster)
            self._folder.claim(read_mark(self._workplace.cluster, self.job.full_name))
            for view in self.job.into.views if self._is_known else ():
                view.remember(self._workplace.cluster, rows.frame, self.job.full_name)
            self._stopping.clear()
            self._seen = -1
            self._started, self._table_records = building, 0
            self._query = self._start(building, rows)
        except BaseException as error:
            self._close()
            self._refuse(error)
            raise

    def _refuse(self, error: BaseException) -> None:
        """Raise what is wrong with the job's definition, with the line of the user's code, if that is it."""
        if type(error) is Misuse or is_permanent(error):
            raise BadJob(sentence_of(error, otherwise=self.job.place)) from error

    def provide(self) -> None:
        """Make the topics that are missing."""
        building, _ = self._built()
        self._provide(building)

    def _build(self) -> tuple[Building, Rows]:
        building, rows = self._built()
        building.look_at(rows.frame)
        self._provide(building)
        starts = self._starts(building)
        if not starts and not building.wants_more:
            return building, rows
        # The function is called again: sources are told where to begin, and what to do, when they are made.
        return self._built(starts, first=building)

    def _starts(self, building: Building) -> Starts:
        """Where the streams begin after a reset; a checkpoint that has a batch knows it."""
        if self._folder.has_begun:
            return {}
        return self._workplace.starts([stream.topic for stream in building.streams], self._folder.beginning())

    def _built(self, starts: Starts | None = None, *, first: Building | None = None) -> tuple[Building, Rows]:
        """What the job's function gives; it is called again when it wants more of a stream than was known."""
        by_rows = first.by_rows if first is not None else frozenset()
        while True:
            building = self._building(starts, first, by_rows)
            try:
                return building, self.job.build(building)
            except RowsWanted as wanted:
                by_rows |= {wanted.stream}

    def _building(
        self, starts: Starts | None, first: Building | None, by_rows: frozenset[Stream]
    ) -> Building:
        return Building(
            self._workplace.spark,
            self._workplace.bootstrap,
            job=self.job.full_name,
            state=f"{self._folder.checkpoint}/operators",
            starts=starts,
            first=first,
            by_rows=by_rows,
        )

    def _provide(self, building: Building) -> None:
        read = dict.fromkeys([*(stream.topic for stream in building.streams), *building.plan.followed])
        topics = self._workplace.inputs.missing(self._workplace.cluster, read)
        topics += self.job.into.new_topics()
        topics.append(NewTopic(name=self.job.dead_topic, partitions=1))
        topics += building.plan.outputs.values()
        self._workplace.provide({topic.name: topic for topic in topics}.values())

    def _describe(self, building: Building, rows: Rows) -> Description:
        return Description(
            generation=self._folder.beginning().generation,
            inputs=input_topics(rows.frame),
            output=self.job.into.name,
            mode=rows.mode or "append",
            operators=stateful_operators(rows.frame),
            stages=tuple(building.plan.stages),
            windows=tuple(building.plan.native_windows),
            schema=rows.frame.schema.simpleString(),
        )

    def _start(self, building: Building, rows: Rows) -> StreamingQuery:
        from headrace.spark.transactional_sink import TransactionalSink

        into_topics = [topic.name for topic in self.job.into.topics]
        failed = FailedRows(self.job, building, rows, self._workplace, self.tally)
        letters = DeadLetters(
            self.job, building.streams, building.plan.tables, self._workplace, self._observed
        )
        building.plan.add_rows(letters.of_batch)
        building.plan.add_rows(lambda batch: self._count_left_out(building.state, batch))
        if self.job.late_topic is not None:
            late = LateRows(self.job, building, lambda: dropped_rows(self._last_execution()))
            building.plan.add_rows(late.of_batch)
        if failed.results is not None or not self.job.into.is_one_topic:
            self._outputs = self._open_outputs(rows.frame.schema)
            building.plan.add_rows(self._outputs.letters)
        self._execution = None
        self._sink = TransactionalSink(
            self._workplace.spark,
            self._workplace.bootstrap,
            job=self.job.full_name,
            job_id=self._folder.identity(),
            place=self._folder.place,
            group=self.job.full_name,
            topics=[*into_topics, self.job.dead_topic, *building.plan.outputs],
            before=building.plan.prepare,
            extra_rows=building.plan.extra_rows,
            deliver=self._deliver(failed),
            recover=failed.recover,
            steps=self._step,
        )
        # A query takes the settings of the session when it starts.
        self._workplace.spark.conf.set(WATERMARK_POLICY, self.job.watermark_policy)
        handover = self._hand_over(rows) if failed.results is None else Handover(frame=failed.results)
        with fitting_batches(handover):
            return self._sink.start(
                handover.frame,
                through=handover.through,
                checkpoint=self._folder.checkpoint,
                trigger=self._trigger(),
                query_name=self.job.full_name,
                output_mode=rows.mode or "append",
            )

    def _deliver(self, failed: FailedRows) -> Deliver | None:
        if self._outputs is None:
            return None
        return self._outputs.deliver if failed.results is None else partial(failed.deliver, self._outputs)

    def _hand_over(self, rows: Rows) -> Handover:
        """What the sink is given of rows."""
        if self._outputs is not None:
            return Handover(frame=rows.frame)
        return handover_of(rows, self.job.into.topics[0])

    def _open_outputs(self, schema: StructType) -> Outputs:
        return Outputs(
            self.job,
            self._workplace.spark,
            schema,
            folder=self._folder.outputs,
            state=self._workplace.state.absolute(),
            tally=self.tally,
            pause=self._stopping.wait,
            steps=self._step,
        )

    def _trigger(self) -> dict[str, Any]:
        if self._once:
            return {"availableNow": True}
        interval = self.job.trigger_interval
        return {} if interval is None else {"processingTime": interval_of(interval)}

    def _observed(self) -> Counts:
        return observed_counts(self._last_execution())

    def _count_left_out(self, state: str, batch: Batch) -> None:
        self.tally.left_out += left_out(state, batch)

    def _last_execution(self) -> Any:
        """The batch that was computed just now, a Java object of Spark's."""
        if self._execution is None:
            # The query may not have been handed out yet when its first batch runs: it is found by its name.
            queries = self._workplace.spark.streams.active
            (query,) = (query for query in queries if query.name == self.job.full_name)
            self._execution = query._jsq.streamingQuery()
        return self._execution.lastExecution()

    def _step(self, step: str, batch: int) -> None:
        if step == FIRST_STEP and self._stopping.is_set():
            raise Stopping(f"job {self.name!r} was asked to stop before batch {batch}")
        if self._steps is not None:
            self._steps(step, batch)

    def is_active(self) -> bool:
        """Whether the query runs; raises what ended it, if that was a failure."""
        if self._query is None:
            return False
        if self._folder.is_wanted:
            self._is_taken_over = True
            self._stopping.set()
        is_active = self._query.isActive  # asked first, so that the progress of its last batch is not missed
        self._take_progress()
        if is_active:
            if self._stopping.is_set() and not self._query.status["isTriggerActive"]:
                self._query.stop()  # between two batches: nothing is abandoned
            return True
        error = self._query.exception()
        self._close()
        if error is not None and not self._stopping.is_set():
            raise error
        if self._is_taken_over:
            raise JobTakenOver(
                f"the view of job {self.name!r} was rebuilt by another process, which goes on with the job."
            )
        return False

    @property
    def is_stopping(self) -> bool:
        """Whether the run was asked to stop."""
        return self._stopping.is_set()

    def is_settled(self) -> bool:
        """Whether the query has opened its sources."""
        return self._query is None or self._query.status["message"] != OPENING_SOURCES

    def wait(self, most_ms: int) -> None:
        """Return when the query has ended, or after so long; `is_active` says which, and why it ended."""
        from pyspark.errors import StreamingQueryException

        if self._query is not None:
            with suppress(StreamingQueryException):
                self._query._jsq.awaitTermination(most_ms)

    def ask_to_stop(self) -> None:
        """Let the current batch be the last one."""
        self._stopping.set()

    def stop(self) -> None:
        """End the query now."""
        self._stopping.set()
        if self._query is not None:
            self._query.stop()
            self._take_progress()
        self._close()

    def _close(self) -> None:
        self._query = None
        if self._sink is not None:
            self._sink.close()
            self._sink = None
        if self._outputs is not None:
            self._outputs.close()
            self._outputs = None
        self._folder.release()

    def _take_progress(self) -> None:
        """Add up the progress of batches that were not seen yet."""
        assert self._query is not None
        fresh = []
        recent = self._query._jsq.recentProgress()  # its Python form would bring all hundred each time
        for position in range(len(recent) - 1, -1, -1):
            if recent[position].batchId() <= self._seen:
                break
            fresh.append(recent[position])
        for progress in reversed(fresh):
            self._seen = max(self._seen, progress.batchId())
            document = json.loads(progress.json())
            self.tally.add(document, rows=self._records_of(document), now_s=time.monotonic())

    def _records_of(self, progress: dict[str, Any]) -> int:
        """The records of streams and tables that a batch read."""
        assert self._started is not None
        before, self._table_records = self._table_records, self._started.plan.table_records()
        # Without a stream, what Spark counts are the rows by which its tasks are started.
        of_streams = rows_of(progress) if self._started.streams else 0
        return of_streams + self._table_records - before
