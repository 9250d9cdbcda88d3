"""One job as a streaming query: made, compared with its checkpoint, started, watched and stopped."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.client.topics import NewTopic
from headrace.durations import interval_of
from headrace.engine.description import Description
from headrace.engine.planner import Planner
from headrace.errors import HeadraceError, Misuse
from headrace.spark.folders import check_shared
from headrace.spark.internals import (
    await_termination,
    dropped_rows,
    execution_of,
    input_topics,
    observed_counts,
    progress_after,
    stateful_operators,
)
from headrace.spark.progress import create_progress_topic, read_marker
from headrace.streams.dead_letters import Counts, DeadLetters
from headrace.streams.explanation import is_permanent, sentence_of
from headrace.streams.failed_rows import FailedRows
from headrace.streams.job_folder import JobTakenOver
from headrace.streams.late import LateRows, batch_figures
from headrace.streams.outputs import Outputs
from headrace.streams.report import JobMetrics, rows_of
from headrace.streams.sink_input import SinkInput, fitting_batches, named_like, sink_input_of
from headrace.streams.source import DEAD, Source, sources_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from headrace.engine.explain import ExplainedPlan
    from headrace.engine.logical import LogicalPlan
    from headrace.engine.planner import PlannedRows, Starts
    from headrace.spark.transactional_batch import Deliver
    from headrace.spark.transactional_sink import Batch, TransactionalSink
    from headrace.streams.job import Job
    from headrace.streams.job_folder import JobFolder
    from headrace.streams.rows import Rows
    from headrace.streams.run_context import RunContext

FIRST_STEP: Final = "begun"
WATERMARK_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
OPENING_SOURCES: Final = "Initializing sources"
"""The status that Spark gives to a query whose Python processes are being started."""


class Stopping(HeadraceError):
    """The job was asked to stop, and the batch that would have been the next was not begun."""


class BadJob(Misuse):
    """A job whose definition Python or Spark refuses: it is the same each time that it is started."""


class JobRun:
    """A job that is run; each `start` continues where the last run ended.

    The job's function is called once for each start: `inputs`, `provide` and `output_schema` keep the logical
    plan for the start that follows.
    """

    def __init__(
        self,
        job: Job,
        run_context: RunContext,
        *,
        once: bool = False,
        steps: Callable[[str, int], None] | None = None,
        is_known: bool = True,
    ) -> None:
        self.job = job
        self.metrics = JobMetrics()
        self._run_context = run_context
        self._folder = run_context.folder(job)
        self._once = once
        self._steps = steps
        self._is_known = is_known
        """Whether readers are to find the view that the job writes."""
        self._stopping = threading.Event()
        self._is_taken_over = False
        self._built: tuple[LogicalPlan, Rows] | None = None
        self._is_started = False
        self._query: StreamingQuery | None = None
        self._sink: TransactionalSink | None = None
        self._outputs: Outputs | None = None
        self._execution: Any = None
        self._seen = -1
        self._planner: Planner | None = None
        self._table_records = 0

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def folder(self) -> JobFolder:
        """Where the job keeps what it needs to go on."""
        return self._folder

    def explained(self) -> ExplainedPlan | None:
        """The plan of the run that is under way; None before its start."""
        from headrace.engine.explain import explained

        return None if self._planner is None else explained(self._planner)

    def inputs(self) -> tuple[str, ...]:
        """The topics that the job reads, tables included."""
        try:
            plan, rows = self._logical()
        except Exception as error:
            self._refuse(error)
            raise
        return self._topics(plan, rows)

    def output_schema(self) -> StructType:
        """The columns of the job's rows."""
        _, rows = self._logical()
        return self.job.into.topics[0].shown(rows.frame).schema

    def provide(self) -> None:
        """Make the topics that are missing."""
        plan, rows = self._logical()
        topics = self._run_context.inputs.missing(self._run_context.cluster, self._topics(plan, rows))
        topics += self.job.into.new_topics()
        topics.append(NewTopic(name=self.job.dead_topic, partitions=1))
        topics += plan.hooks.outputs.values()
        self._run_context.provide({topic.name: topic for topic in topics}.values())

    def start(self) -> None:
        """Compare the job with its checkpoint, make the topics that are missing, and start the query."""
        self._folder.hold()
        try:
            if self._is_started:
                self._built = None
            plan, rows = self._logical()
            self._is_started = True
            self.provide()
            planner = Planner(
                plan,
                rows.frame,
                state=f"{self._folder.checkpoint}/operators",
                starts=self._starts(plan, rows),
            )
            planned = planner.planned_rows()
            planner.hooks.check_all()
            check_shared(self._run_context.spark, self._folder.checkpoint)
            self._folder.accept(self._describe(planner, planned, rows))
            create_progress_topic(self._run_context.cluster)
            self._folder.claim(read_marker(self._run_context.cluster, self.job.full_name))
            for view in self.job.into.views if self._is_known else ():
                view.remember(self._run_context.cluster, rows.frame, self.job.full_name)
            self._stopping.clear()
            self._seen = -1
            self._planner, self._table_records = planner, 0
            self._query = self._start(planner, planned, rows)
        except BaseException as error:
            self._close()
            self._refuse(error)
            raise

    def _refuse(self, error: BaseException) -> None:
        """Raise what is wrong with the job's definition, with the line of the user's code, if that is it."""
        if type(error) is Misuse or is_permanent(error):
            raise BadJob(sentence_of(error, otherwise=self.job.place)) from error

    def _logical(self) -> tuple[LogicalPlan, Rows]:
        if self._built is None:
            self._built = self.job.build(self._run_context.spark, self._run_context.bootstrap)
        return self._built

    def _topics(self, plan: LogicalPlan, rows: Rows) -> tuple[str, ...]:
        nodes = plan.reachable(rows.frame)
        read = [topic for node in nodes for topic in node.topics]
        return tuple(dict.fromkeys([*input_topics(rows.frame), *read, *plan.hooks.followed]))

    def _starts(self, plan: LogicalPlan, rows: Rows) -> Starts:
        """Where the streams start after a reset; a checkpoint that has a batch knows it."""
        if self._folder.has_begun:
            return {}
        sources = [node for node in plan.reachable(rows.frame) if isinstance(node, Source)]
        return self._run_context.starts([node.stream.topic for node in sources], self._folder.beginning())

    def _describe(self, planner: Planner, planned: PlannedRows, rows: Rows) -> Description:
        return Description(
            generation=self._folder.beginning().generation,
            inputs=input_topics(planned.frame),
            output=self.job.into.name,
            mode=rows.mode or "append",
            operators=stateful_operators(planned.frame),
            state=planner.hooks.state,
            schema=rows.frame.schema.simpleString(),
        )

    def _start(self, planner: Planner, planned: PlannedRows, rows: Rows) -> StreamingQuery:
        from headrace.spark.transactional_sink import TransactionalSink

        into_topics = [topic.name for topic in self.job.into.topics]
        hooks = planner.hooks
        failed = FailedRows(self.job, planner, self._run_context, self.metrics)
        streams = [source.stream for source in sources_of(planner)]
        letters = DeadLetters(self.job, streams, hooks.tables, self._run_context, self._observed)
        hooks.add_rows(letters.of_batch)
        hooks.add_rows(lambda batch: self._note_state(planner.state, batch))
        if self.job.late_topic is not None:
            late = LateRows(self.job, planner, lambda: dropped_rows(self._last_execution()))
            hooks.add_rows(late.of_batch)
        if failed.results is not None or not self.job.into.is_one_topic:
            self._outputs = self._open_outputs(rows.frame.schema)
            hooks.add_rows(self._outputs.letters)
        self._execution = None
        self._sink = TransactionalSink(
            self._run_context.spark,
            self._run_context.bootstrap,
            job=self.job.full_name,
            job_id=self._folder.identity(),
            place=self._folder.place,
            group=self.job.full_name,
            topics=[*into_topics, self.job.dead_topic, *hooks.outputs],
            before=hooks.prepare,
            extra_rows=hooks.extra_rows,
            deliver=self._deliver(failed),
            recover=failed.recover,
            reset_metrics=self._reset_metrics,
            around=self._folder.barrier.batch,
            steps=self._step,
            written=self.metrics.rows_out,
            tracer=self._run_context.tracer,
        )
        # A query takes the settings of the session when it starts.
        self._run_context.spark.conf.set(WATERMARK_POLICY, self.job.watermark_policy)
        sink_input = self._sink_input(rows, planned, failed)
        with fitting_batches(sink_input):
            return self._sink.start(
                sink_input.frame,
                through=sink_input.through,
                checkpoint=self._folder.checkpoint,
                trigger=self._trigger(),
                query_name=self.job.full_name,
                output_mode=rows.mode or "append",
            )

    def _deliver(self, failed: FailedRows) -> Deliver | None:
        if self._outputs is None:
            return None
        if failed.results is not None:
            return partial(failed.deliver, self._outputs)
        return self._outputs.deliver if self.job.into.topics else self._outputs.deliver_staged

    def _sink_input(self, rows: Rows, planned: PlannedRows, failed: FailedRows) -> SinkInput:
        """The rows that the query ends with."""
        if failed.results is not None:
            return SinkInput(frame=failed.results)
        if self._outputs is not None and not self.job.into.topics:
            return SinkInput(frame=self._outputs.staged(planned))
        if self._outputs is not None:
            return SinkInput(frame=named_like(planned.frame, rows.frame))
        return sink_input_of(rows, planned, self.job.into.topics[0])

    def _open_outputs(self, schema: StructType) -> Outputs:
        return Outputs(
            self.job,
            self._run_context.spark,
            schema,
            folder=self._folder.outputs,
            state=self._run_context.state.absolute(),
            metrics=self.metrics,
            pause=self._stopping.wait,
            steps=self._step,
        )

    def _trigger(self) -> dict[str, Any]:
        if self._once:
            return {"availableNow": True}
        interval = self.job.trigger_interval
        return {} if interval is None else {"processingTime": interval_of(interval)}

    def _observed(self) -> Counts:
        return observed_counts(self._last_execution(), DEAD)

    def _note_state(self, state: str, batch: Batch) -> None:
        figures = batch_figures(state, batch)
        if figures is not None:
            self.metrics.operators = figures
            self.metrics.left_out += figures.late

    def _last_execution(self) -> Any:
        """The batch that was computed just now, a Java object of Spark's."""
        if self._execution is None:
            # The query may not have been handed out yet when its first batch runs: it is found by its name.
            queries = self._run_context.spark.streams.active
            (query,) = (query for query in queries if query.name == self.job.full_name)
            self._execution = execution_of(query)
        return self._execution.lastExecution()

    def _reset_metrics(self) -> None:
        """Forget the rows that tasks of the current batch have counted: it is computed again."""
        self._last_execution().executedPlan().resetMetrics()

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
                await_termination(self._query, most_ms)

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
        for document in progress_after(self._query, self._seen):
            self._seen = max(self._seen, document["batchId"])
            self.metrics.add(document, rows=self._records_of(document), now_s=time.monotonic())

    def _records_of(self, progress: dict[str, Any]) -> int:
        """The records of streams and tables that a batch read."""
        assert self._planner is not None
        before, self._table_records = self._table_records, self._planner.hooks.table_records()
        # Without a stream, what Spark counts are the rows by which its tasks are started.
        of_streams = rows_of(progress) if sources_of(self._planner) else 0
        return of_streams + self._table_records - before
