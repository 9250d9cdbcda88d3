"""The supervisor, with scripted runs and a virtual clock."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

from headrace.errors import HeadraceError, Misuse
from headrace.streams.supervisor import JobEvent, Restarts, State, Supervisor


class SinkFenced(HeadraceError):
    """As the sink's error: the supervisor knows it by its name."""


@dataclass
class Puppet:
    """A run that fails on demand."""

    name: str = "job"
    start_fails: Exception | None = None
    fails: Exception | None = None
    active: bool = False
    starts: int = 0
    is_deaf: bool = False
    settled: bool = True

    def start(self) -> None:
        self.starts += 1
        if self.start_fails is not None:
            raise self.start_fails
        self.active, self.fails = True, None

    def is_active(self) -> bool:
        if self.fails is not None:
            self.active = False
            raise self.fails
        return self.active

    def is_settled(self) -> bool:
        return self.settled

    def ask_to_stop(self) -> None:
        self.active = self.active and self.is_deaf

    def stop(self) -> None:
        self.active = False


@dataclass
class Stage:
    """A supervisor with one puppet."""

    puppet: Puppet = field(default_factory=Puppet)
    now: float = 0.0
    news: list[JobEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(clock=lambda: self.now, tell=self.news.append)

    def add(self, limit: int | None = None) -> None:
        self.supervisor.add([self.puppet], limit=limit)
        self.supervisor.turn()

    def pass_time(self, seconds: float) -> bool:
        self.now += seconds
        return self.supervisor.turn()

    @property
    def state(self) -> State:
        return self.supervisor.charges[self.puppet.name].state


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_failed_job_is_started_again_after_a_wait_that_grows(stage: Stage) -> None:
    stage.add()
    waits = []
    for _ in range(4):
        stage.puppet.fails = OSError("the disk is full")
        stage.pass_time(1)
        waits.append(stage.news[-1].wait_s)
        assert stage.state is State.WAITING
        stage.pass_time(stage.news[-1].wait_s or 0)
        assert stage.state is State.RUNNING
    assert waits == [1, 2, 4, 8]
    assert stage.puppet.starts == 5
    assert stage.news[1].text.startswith("OSError: the disk is full")


def test_a_job_is_restarted_after_its_current_batch(stage: Stage) -> None:
    stage.add()
    stage.puppet.is_deaf = True  # its batch takes a while
    stage.supervisor.restart("job", between=lambda: stage.news.append(None))  # type: ignore[arg-type]
    stage.pass_time(1)
    assert (stage.puppet.starts, stage.news[-1] is None) == (1, False)
    stage.puppet.active = False
    stage.pass_time(1)
    assert stage.news[-1] is None
    stage.pass_time(1)
    assert (stage.puppet.starts, stage.state) == (2, State.RUNNING)


def test_a_job_that_has_failed_is_restarted_at_once(stage: Stage) -> None:
    stage.add()
    stage.puppet.fails = Misuse("no")
    stage.pass_time(1)
    assert stage.state is State.FAILED
    stage.supervisor.restart("job", between=lambda: None)
    stage.pass_time(0)
    assert (stage.puppet.starts, stage.state) == (2, State.RUNNING)


def test_a_reset_that_fails_is_the_reason_of_the_job(stage: Stage) -> None:
    def fail() -> None:
        raise Misuse("the folder is held")

    stage.add()
    stage.supervisor.restart("job", between=fail)
    stage.pass_time(1)
    assert stage.state is State.FAILED
    assert stage.news[-1].text.startswith("the folder is held")


def test_it_is_not_started_before_its_time(stage: Stage) -> None:
    stage.add()
    stage.puppet.fails = OSError("x")
    stage.pass_time(1)
    stage.pass_time(0.9)
    assert stage.puppet.starts == 1
    stage.pass_time(0.1)
    assert stage.puppet.starts == 2


def test_a_job_that_was_well_for_long_waits_as_after_a_first_failure(stage: Stage) -> None:
    stage.add()
    for healthy_s in (1, 1, 600):
        stage.puppet.fails = OSError("x")
        stage.pass_time(healthy_s)
        wait_s = stage.news[-1].wait_s or 0
        stage.pass_time(wait_s)
    assert wait_s == 1


@pytest.mark.parametrize("error", [Misuse("changed"), SinkFenced("another driver")])
def test_what_needs_a_decision_is_not_tried_again(stage: Stage, error: Exception) -> None:
    stage.puppet.start_fails = error
    stage.add()
    assert stage.state is State.FAILED
    assert stage.supervisor.failed
    assert not stage.pass_time(1000)
    assert stage.puppet.starts == 1


def test_a_run_whose_java_process_has_ended_is_not_tried_again(stage: Stage) -> None:
    stage.add()
    stage.puppet.fails = error_of_a_call_to_no_java()
    stage.pass_time(1)
    assert stage.state is State.FAILED
    assert "Java process of Spark has ended" in stage.news[-1].text


def error_of_a_call_to_no_java() -> Exception:
    """The error of py4j if no process listens on the port of its Java process."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        java = ClientServer(
            JavaParameters(port=port, daemonize_memory_management=True), PythonParameters(port=0)
        )
        try:
            java.jvm.java.lang.System.nanoTime()
        except Exception as error:  # noqa: BLE001 - whatever py4j makes of it
            return error
        finally:
            java.shutdown()
    raise AssertionError("a process listens there")


def test_after_so_many_failures_in_a_row_it_is_given_up(stage: Stage) -> None:
    stage.puppet.start_fails = OSError("x")
    stage.add(limit=3)
    while stage.pass_time(10):
        pass
    assert stage.puppet.starts == 3
    assert stage.state is State.FAILED


def test_a_job_that_ends_by_itself_is_finished(stage: Stage) -> None:
    stage.add()
    stage.puppet.active = False
    assert not stage.pass_time(1)
    assert stage.state is State.FINISHED
    assert not stage.supervisor.failed


def test_one_that_fails_does_not_disturb_the_others(stage: Stage) -> None:
    other = Puppet(name="other")
    stage.supervisor.add([other])
    stage.add()
    stage.puppet.fails = OSError("x")
    stage.pass_time(1)
    assert stage.supervisor.charges["other"].state is State.RUNNING
    assert other.starts == 1


def test_only_so_many_jobs_are_starting_at_once(stage: Stage) -> None:
    puppets = [Puppet(name=name, settled=False) for name in "abcd"]
    stage.supervisor.add(puppets)
    stage.supervisor.turn()
    assert [puppet.starts for puppet in puppets] == [1, 1, 0, 0]
    puppets[0].settled = True
    stage.supervisor.turn()
    assert [puppet.starts for puppet in puppets] == [1, 1, 1, 0]


def ticking(stage: Stage) -> Callable[[], None]:
    def pause() -> None:
        stage.now += 1

    return pause


def test_a_stop_lets_the_current_batch_finish(stage: Stage) -> None:
    stage.add()
    assert stage.supervisor.stop(patience_s=5, pause=ticking(stage))
    assert not stage.puppet.active


def test_a_batch_that_does_not_finish_in_time_is_abandoned(stage: Stage) -> None:
    stage.puppet.is_deaf = True
    stage.add()
    assert not stage.supervisor.stop(patience_s=5, pause=ticking(stage))
    assert stage.now == 5
    assert not stage.puppet.active


@given(st.lists(st.floats(0, 1000), max_size=60))
def test_no_wait_is_longer_than_the_longest_nor_shorter_than_the_first(runs: list[float]) -> None:
    restarts = Restarts()
    for ran_for_s in runs:
        wait_s = restarts.wait_s(ran_for_s=ran_for_s)
        assert wait_s is not None
        assert restarts.first_s <= wait_s <= restarts.longest_s
