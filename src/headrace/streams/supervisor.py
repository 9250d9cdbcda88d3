"""Keeps jobs running: starts them, notices failures, says why, and starts again after a growing wait.

The supervisor decides; what a run of a job is (a streaming query, or in tests something simpler) is behind
`Run`. It does nothing between two calls of `turn`, and takes the time from the clock that it was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from headrace.errors import Misuse
from headrace.streams.explanation import Cause, is_spark_gone, root_cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SPARK_GONE: Final = "the Java process of Spark has ended. Start the run again: it continues where it was."
HOPELESS: Final = frozenset(
    {
        "BadCheckpoint",
        "BadColumns",
        "BadOption",
        "BadState",
        "CaptureFailed",
        "CheckpointMismatch",
        "DataLost",
        "DeadLimitReached",
        "JobIsElsewhere",
        "JobIsRunning",
        "JobTakenOver",
        "MissingTopic",
        "Misuse",
        "OffsetOutOfRange",
        "SinkFenced",
        "Superseded",
        "TableCopyLost",
        "Unsuitable",
    }
)
"""Errors of ours that a restart would only repeat: the user has to decide."""


DEFAULT_FIRST_S: Final = 1.0
DEFAULT_LONGEST_S: Final = 60.0
DEFAULT_HEALTHY_S: Final = 120.0


@dataclass(slots=True, kw_only=True)
class Restarts:
    """The failures of one job, and the wait that each of them costs.

    The wait doubles from `first_s` to `longest_s`. After a run of `healthy_s` it starts again at `first_s`.
    After `limit` failures in a row (if there is one) the job is not started again.
    """

    first_s: float = DEFAULT_FIRST_S
    longest_s: float = DEFAULT_LONGEST_S
    healthy_s: float = DEFAULT_HEALTHY_S
    limit: int | None = None
    in_a_row: int = 0

    def wait_s(self, *, ran_for_s: float) -> float | None:
        """How long to wait after a failure just now, or None: it is not started again.

        >>> restarts = Restarts(limit=3)
        >>> [restarts.wait_s(ran_for_s=5) for _ in range(3)]
        [1.0, 2.0, None]
        """
        if ran_for_s >= self.healthy_s:
            self.in_a_row = 0
        self.in_a_row += 1
        if self.limit is not None and self.in_a_row >= self.limit:
            return None
        doublings = min(self.in_a_row - 1, 30)
        return float(min(self.first_s * 2**doublings, self.longest_s))


class State(StrEnum):
    """Where a job is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class Run(Protocol):
    """One job as the supervisor sees it."""

    @property
    def name(self) -> str:
        """The job's name."""

    def start(self) -> None:
        """Begin, from where the last run left off; raises what stands in the way."""

    def is_active(self) -> bool:
        """Whether it still runs; raises what ended it, if that was a failure."""

    def is_settled(self) -> bool:
        """Whether the work of starting is behind it."""

    def ask_to_stop(self) -> None:
        """Let the current batch be the last one."""

    def stop(self) -> None:
        """End now; a batch under way is abandoned, and is done by the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a job."""

    job: str
    state: State
    text: str
    """One sentence for people; the reason, if it failed."""
    wait_s: float | None = None
    """After which time it is started again."""


@dataclass(slots=True, kw_only=True)
class SupervisedJob:
    """A job under supervision."""

    run: Run
    restarts: Restarts
    state: State = State.WAITING
    since_s: float = 0.0
    """When it was started last, or while it waits, when it is to be."""
    reason: str = ""
    starts: int = 0
    """How often it was started."""
    restart: Callable[[], None] | None = None
    """What to do when it has stopped, before it is started again; None if it is not to be restarted."""


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Jobs that run side by side."""

    clock: Callable[[], float]
    tell: Callable[[JobEvent], None]
    at_once: int = 2
    """How many jobs may be starting at the same time. Each start brings Python processes, to which Spark
    gives ten seconds: too many of them would all be late."""
    charges: dict[str, SupervisedJob] = field(default_factory=dict)

    def add(self, runs: Iterable[Run], *, limit: int | None = None) -> None:
        """Take charge of jobs; they are started in the next turn."""
        for run in runs:
            self.charges[run.name] = SupervisedJob(
                run=run, restarts=Restarts(limit=limit), since_s=self.clock()
            )

    def turn(self) -> bool:
        """Look after every job once; whether one of them still runs or will."""
        for charge in self.charges.values():
            if charge.state is State.WAITING and self.clock() >= charge.since_s:
                if self.starting < self.at_once:
                    self._start(charge)
            elif charge.state is State.RUNNING:
                self._check(charge)
        return any(charge.state in (State.WAITING, State.RUNNING) for charge in self.charges.values())

    @property
    def starting(self) -> int:
        """How many jobs are being started now."""
        running = (charge.run for charge in self.charges.values() if charge.state is State.RUNNING)
        return sum(not run.is_settled() for run in running)

    @property
    def failed(self) -> bool:
        """Whether a job was given up."""
        return any(charge.state is State.FAILED for charge in self.charges.values())

    def stop(self, *, patience_s: float, pause: Callable[[], None]) -> bool:
        """End all jobs after their current batch; whether all could finish it in time.

        `pause` is called again and again while they finish.
        """
        running = [charge for charge in self.charges.values() if charge.state is State.RUNNING]
        for charge in running:
            charge.run.ask_to_stop()
        deadline = self.clock() + patience_s
        while any(_still_active(charge.run) for charge in running) and self.clock() < deadline:
            pause()
        in_time = not any(_still_active(charge.run) for charge in running)
        for charge in running:
            charge.run.stop()
            charge.state = State.FINISHED
        return in_time

    def restart(self, name: str, *, between: Callable[[], None]) -> None:
        """Stop a job after its current batch, call `between`, and start it again, also if it had failed."""
        charge = self.charges[name]
        charge.restart = between
        if charge.state is State.RUNNING:
            charge.run.ask_to_stop()
        else:
            self._again(charge)

    def _again(self, charge: SupervisedJob) -> None:
        """Start a job that has stopped again, in the next turn."""
        between, charge.restart = charge.restart, None
        charge.restarts.in_a_row = 0
        try:
            if between is not None:
                between()
        except Exception as error:  # noqa: BLE001  a supervisor decides about whatever went wrong
            self._failed(charge, error)
            return
        charge.state, charge.since_s = State.WAITING, self.clock()

    def give_up(self, run: Run, error: Exception) -> None:
        """Take charge of a job that failed before it was started, and will not be."""
        charge = SupervisedJob(run=run, restarts=Restarts(limit=1), since_s=self.clock())
        self.charges[run.name] = charge
        self._failed(charge, error)

    def _start(self, charge: SupervisedJob) -> None:
        charge.since_s = self.clock()
        charge.starts += 1
        try:
            charge.run.start()
        except Exception as error:  # noqa: BLE001  a supervisor decides about whatever went wrong
            self._failed(charge, error)
            return
        charge.state, charge.reason = State.RUNNING, ""
        again = f" again (attempt {charge.restarts.in_a_row + 1})" if charge.restarts.in_a_row else ""
        self.tell(JobEvent(job=charge.run.name, state=State.RUNNING, text=f"runs{again}"))

    def _check(self, charge: SupervisedJob) -> None:
        try:
            if charge.run.is_active():
                return
        except Exception as error:  # noqa: BLE001  a supervisor decides about whatever went wrong
            self._failed(charge, error)
            return
        if charge.restart is not None:
            self._again(charge)
            return
        charge.state = State.FINISHED
        self.tell(
            JobEvent(job=charge.run.name, state=State.FINISHED, text="has processed all available records")
        )

    def _failed(self, charge: SupervisedJob, error: Exception) -> None:
        cause = Cause(kind="", message=SPARK_GONE) if is_spark_gone(error) else root_cause(error)
        wait_s = charge.restarts.wait_s(ran_for_s=self.clock() - charge.since_s)
        is_final = isinstance(error, Misuse) or cause.kind.rpartition(".")[2] in HOPELESS
        if is_final or cause.message == SPARK_GONE:
            wait_s = None
        charge.reason = cause.sentence
        charge.state = State.FAILED if wait_s is None else State.WAITING
        charge.since_s = self.clock() + (wait_s or 0.0)
        self.tell(JobEvent(job=charge.run.name, state=charge.state, text=cause.sentence, wait_s=wait_s))


def _still_active(run: Run) -> bool:
    """Whether a run that was asked to stop has not done so; why it ended no longer matters."""
    try:
        return run.is_active()
    except Exception:  # noqa: BLE001  it ended, which is all that was wanted
        return False
