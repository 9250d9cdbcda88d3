"""Runs an application: broker, Spark, jobs, and a clean end."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.process import BrokerDidNotStart, BrokerProcess
from headrace.capture.process import CaptureProcess
from headrace.client.cluster import Cluster
from headrace.errors import Misuse
from headrace.gateway.process import GatewayProcess
from headrace.spark.java import usable_cores
from headrace.streams.job_status import RunStatus
from headrace.streams.rebuild import run_of
from headrace.streams.run_context import InputTopics, RunContext
from headrace.streams.supervisor import Supervisor
from headrace.tracing import open_tracer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from headrace.capture.settings import CaptureSettings
    from headrace.metrics.address import MetricsAddress
    from headrace.streams.app import App
    from headrace.streams.display import Display
    from headrace.streams.job import Job
    from headrace.streams.job_run import JobRun
    from headrace.streams.rebuild import Rebuild
    from headrace.streams.supervisor import Run

TURN_S: Final = 0.2
PATIENCE_S: Final = 20.0
ONCE_ATTEMPTS: Final = 3
USUAL_PORT: Final = 9092
DONE: Final = 0
FAILED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is to be run, and where."""

    app: App
    jobs: tuple[str, ...] = ()
    """The names of those to run; all of them if none is named."""
    once: bool = False
    broker: str | None = None
    """The address; an embedded broker is started when there is none."""
    master: str = "local[*]"
    state: Path = field(default_factory=lambda: Path(".headrace"))
    checkpoints: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark's own, by its names."""
    seconds: float | None = None
    """After how long to stop; otherwise the user says when."""
    http: str | None = None
    """The address of an HTTP gateway that runs as long as the jobs: `[HOST:]PORT`."""
    metrics: MetricsAddress | None = None
    """Where metrics and health are served; None for nowhere."""
    tracing: str | None = None
    """Where traces are exported to by OTLP; None for nowhere."""

    def chosen(self) -> tuple[Job, ...]:
        """The jobs that were asked for."""
        jobs = {job.name: job for job in self.app.jobs}
        unknown = [name for name in self.jobs if name not in jobs]
        if unknown or not (jobs or self.app.captures):
            known = ", ".join(jobs) or "none"
            problem = f"has no job named {unknown[0]!r}" if unknown else "has no jobs"
            raise Misuse(f"the application {self.app.name!r} {problem}. Its jobs: {known}.")
        return tuple(jobs[name] for name in self.jobs or jobs)

    def captures(self) -> tuple[CaptureSettings, ...]:
        """The captures that belong to the run: where jobs are chosen by name, another run has them."""
        return () if self.jobs else tuple(replace(each, once=self.once) for each in self.app.captures)


class Runner:
    """One run of an application, from the first process to the last."""

    def __init__(self, order: RunOptions, display: Display) -> None:
        self._order = order
        self._jobs = order.chosen()
        self._display = display
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._broker: BrokerProcess | None = None
        self._captures: list[CaptureProcess] = []
        self._status: RunStatus | None = None
        self._supervisor = Supervisor(clock=time.monotonic, tell=display.tell, at_once=usable_cores())

    @property
    def captures(self) -> tuple[CaptureProcess, ...]:
        """The captures whose processes run."""
        return tuple(capture for capture in self._captures if capture.is_running)

    def run(self) -> int:
        """Run until all is done or somebody stops it; the exit code."""
        with ExitStack() as stack:
            bootstrap = self._order.broker or self._embedded_broker(stack)
            cluster = stack.enter_context(Cluster.of(bootstrap))
            cluster.any()  # a broker that is not there is told before Spark takes its time to start
            if self._order.http is not None:
                gateway = stack.enter_context(GatewayProcess(self._order.http, bootstrap))
                self._display.say(f"The HTTP gateway is up on {gateway.url}.")
            spark = stack.enter_context(spark_session(self._order))
            stack.enter_context(self._signals())
            tracer = open_tracer(f"headrace-{self._order.app.name}", self._order.tracing)
            if tracer is not None:
                stack.callback(tracer.flush)
            run_context = RunContext(
                spark=spark,
                bootstrap=bootstrap,
                cluster=cluster,
                state=self._order.state,
                checkpoints=self._order.checkpoints,
                inputs=InputTopics.of(self._order.app),
                tracer=tracer,
            )
            runs = [run_of(job, run_context, once=self._order.once) for job in self._jobs]
            self._captures = [
                CaptureProcess(
                    settings,
                    bootstrap,
                    on_message=self._display.say,
                    sends_metrics=self._order.metrics is not None or not self._order.once,
                )
                for settings in self._order.captures()
            ]
            self._serve_metrics(stack, runs)
            if not self._order.once:
                self._status = stack.enter_context(
                    RunStatus(bootstrap, self._order.app.name, self._supervisor, runs, self._captures)
                )
            stack.enter_context(self._display)
            return self._run_once(runs) if self._order.once else self._run_on(runs)

    def _serve_metrics(self, stack: ExitStack, runs: Sequence[JobRun | Rebuild]) -> None:
        if self._order.metrics is None:
            return
        from headrace.metrics.server import MetricsServer
        from headrace.streams.metrics import RunMetricsSource

        source = RunMetricsSource(self._order.app.name, self._supervisor, runs, self._captures)
        server = stack.enter_context(MetricsServer(self._order.metrics, source))
        self._display.say(f"Metrics are served on http://{server.address}/metrics.")

    def stop(self) -> None:
        """Ask for a clean end, from any thread; the second time the current batches are abandoned."""
        if self._stopped.is_set():
            self._hurried.set()
        self._stopped.set()

    def _run_on(self, runs: Sequence[JobRun | Rebuild]) -> int:
        self._supervisor.add(self._captures)
        self._await_captures()
        self._supervisor.add(runs)
        self._look_after(runs)
        if self._stopped.is_set():
            self._end()
        return FAILED if self._supervisor.failed else DONE

    def _await_captures(self) -> None:
        """Return when the topics of captured tables are there: a job would make them otherwise."""
        while not self._stopped.is_set() and self._supervisor.turn() and self._supervisor.starting:
            self._stopped.wait(TURN_S)

    def _run_once(self, runs: Sequence[JobRun | Rebuild]) -> int:
        for stage in self._stages(runs):
            self._supervisor.add(stage, limit=ONCE_ATTEMPTS)
            self._look_after(runs)
            if self._stopped.is_set():
                self._end()
                return DONE
            if self._supervisor.failed:
                return FAILED
        return DONE

    def _stages(self, runs: Sequence[JobRun | Rebuild]) -> list[list[Run]]:
        """Captures first, and then the jobs in the order in which they feed each other.

        A job that cannot even be built is given up, like one that fails when it is started; then none runs.
        """
        inputs: dict[str, tuple[str, ...]] = {}
        for run in runs:
            try:
                inputs[run.name] = run.inputs()
            except Exception as error:  # noqa: BLE001  the supervisor says what is wrong with it
                self._supervisor.give_up(run, error)
        if self._supervisor.failed:
            return [[]]
        by_name: dict[str, Run] = {run.name: run for run in runs}
        outputs = {run.name: [topic.name for topic in run.job.into.topics] for run in runs}
        return [[*self._captures], *([by_name[name] for name in names] for names in stages(inputs, outputs))]

    def _look_after(self, runs: Sequence[JobRun | Rebuild]) -> None:
        """Turn after turn, until no job runs any more or somebody stops it."""
        deadline = None if self._order.seconds is None else time.monotonic() + self._order.seconds
        while not self._stopped.is_set() and self._supervisor.turn():
            self._look_after_broker()
            self._show(runs)
            if self._status is not None:
                self._status.turn()
            if deadline is not None and time.monotonic() >= deadline:
                self._stopped.set()
            self._stopped.wait(TURN_S)
        self._show(runs)

    def _end(self) -> None:
        self._display.say("Stopping: the current batches are finished first. (Ctrl-C again: at once.)")
        patience_s = 0.0 if self._hurried.is_set() else PATIENCE_S
        if not self._supervisor.stop(patience_s=patience_s, pause=self._pause):
            self._display.say(
                "A batch was abandoned; the next run does it again, and nothing is written twice."
            )

    def _pause(self) -> None:
        if self._hurried.wait(TURN_S):
            for charge in self._supervisor.charges.values():
                charge.run.stop()

    def _show(self, runs: Sequence[JobRun | Rebuild]) -> None:
        now_s = time.monotonic()
        charges = self._supervisor.charges
        self._display.show(
            [
                run.metrics.report(
                    job=run.name,
                    into=run.job.into.name,
                    state=charges[run.name].state if run.name in charges else "waiting",
                    reason=charges[run.name].reason if run.name in charges else "",
                    now_s=now_s,
                )
                for run in runs
            ]
        )

    def _embedded_broker(self, stack: ExitStack) -> str:
        """The address of a broker that lives as long as this run."""
        folder = self._order.state.absolute() / "broker"
        folder.mkdir(parents=True, exist_ok=True)
        port = USUAL_PORT if _is_free(USUAL_PORT) else 0
        self._broker = stack.enter_context(BrokerProcess(folder, port=port, attached=True))
        self._display.say(f"A broker is up on {self._broker.bootstrap}; its data are in {folder}.")
        if port == 0:
            self._display.say(
                f"(Port {USUAL_PORT} was taken: give other commands --broker {self._broker.bootstrap}.)"
            )
        return self._broker.bootstrap

    def _look_after_broker(self) -> None:
        if self._broker is None or self._broker.is_running:
            return
        self._display.say("The broker ended; it is started again.")
        self._broker.kill()
        try:
            self._broker.start()
        except BrokerDidNotStart as error:
            self._display.say(str(error))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """A block in which Ctrl-C and SIGTERM ask for a clean end (Spark sets its own before)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def spark_session(order: RunOptions) -> Iterator[SparkSession]:
    """A session with our source; stopped at the end unless the program had it before."""
    from pyspark import SparkContext

    from headrace.spark.session import open_session

    # (`getActiveSession` knows only sessions of this thread.)
    is_ours = SparkContext._active_spark_context is None
    session = open_session(order.app.name, master=order.master, more=order.spark)
    try:
        yield session
    finally:
        if is_ours:
            session.stop()


def _is_free(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def stages(inputs: Mapping[str, tuple[str, ...]], outputs: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The jobs in stages: all that a job reads was written by earlier stages, or outside of the application.

    Jobs that feed each other in a circle come last, together.

    >>> stages({"a": ("orders",), "b": ("paid", "orders"), "c": ("x",)}, {"a": ["paid"], "b": ["x"], "c": []})
    [['a'], ['b'], ['c']]
    """
    waiting = dict(inputs)
    result: list[list[str]] = []
    while waiting:
        pending = {topic for job in waiting for topic in outputs[job]}
        ready = [job for job, topics in waiting.items() if pending.isdisjoint(topics)] or list(waiting)
        result.append(ready)
        for job in ready:
            del waiting[job]
    return result
