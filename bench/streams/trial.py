"""One trial: the program of a system processes events, until all results are written.

The topic contains a first part, which is the warm-up. After its results, a second part is written behind a
gate, which is then opened; the measured time is from there to the last result.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.page_cache import settle
from bench.readings import round_to
from bench.streams.gate import Gate, Writer
from bench.streams.inputs import Inputs, Part
from bench.streams.plan import Plan
from bench.streams.results import Contents, Results, Seen
from bench.streams.running import Running
from bench.streams.stage import Stage
from bench.streams.systems import System
from bench.streams.works import Work

WARM, WHOLE, BATCHES = "events/s", "events/s, whole run", "events/s, in micro-batches"
QUIET_SECONDS = 2.0
FULL_BATCH = 0.4
"""Of the largest micro-batch: what is smaller is a rest."""


def try_events(stage: Stage, system: System, work: Work) -> None:
    """Measure a work over a stream of events."""
    inputs = inputs_of(stage.plan, system.name, work)
    topics = stage.make_topics(*inputs.roles, "output", "late")
    with ExitStack() as stack:
        stack.callback(stage.delete_topics, topics)
        writer = Writer(stage.bootstrap)
        for messages in inputs.table():
            writer.write(topics["table"], messages)
        _write(writer, inputs.first, topics)
        settle()
        program = stack.enter_context(Running(system, task_of(stage, work, topics)))
        gate = Gate(stage.bootstrap)
        stack.callback(gate.close)
        _measure(stage, system, work, Trial(inputs=inputs, topics=topics, gate=gate, program=program))


def task_of(stage: Stage, work: Work, topics: dict[str, str]) -> dict[str, Any]:
    """The task of a program."""
    plain = {"work": work.as_json(), "bootstrap": stage.bootstrap, "cores": stage.cores}
    return {**plain, "max_records": stage.plan.max_records, **topics}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial consists of."""

    inputs: Inputs
    topics: dict[str, str]
    gate: Gate
    program: Running


def inputs_of(plan: Plan, system: str, work: Work) -> Inputs:
    """The events that a system is given for a work."""
    is_thin = work.kind == "hopping" and system in plan.shares
    share = work.share * (plan.shares[system] if is_thin else 1)
    thin = plan.thin if is_thin else 1
    return Inputs(
        replace(work, keys=work.keys // thin),
        first=int(plan.first[system] * share),
        then=int(plan.then[system] * share),
        rate=plan.rate // thin,
        table_rows=int(work.table_rows * plan.table_share),
    )


def _write(writer: Writer, part: Part, topics: dict[str, str]) -> None:
    for events in (part.events, part.closing):
        for role, some in events.items():
            writer.write_events(topics[role], some)
    writer.settle()


def _measure(stage: Stage, system: System, work: Work, trial: Trial) -> None:
    program, inputs, results = trial.program, trial.inputs, stage.results(trial.topics["output"])
    wait = waiting(stage, results, program, quiet_s=QUIET_SECONDS)
    warmed_up, is_done = wait(inputs.rows_of_first())
    if not is_done:
        had = f"{results.end()} of {inputs.rows_of_first()} first rows"
        stage.note(system.name, work, f"no figure: {had} were there.\n{program.complaints()}")
        return
    _write(trial.gate, inputs.then, trial.topics)
    rows, _ = inputs.rows_of_all()  # before the gate opens: it takes a core for seconds
    settle()
    program.wait_until_idle(stage.plan.rest_s)
    opened_s = time.time()
    trial.gate.open()
    last, _ = wait(rows)
    was_alive = program.is_alive()
    program.stop()
    if last.at_s <= opened_s or not was_alive:
        stage.note(system.name, work, f"no figure: it ended, or gave nothing.\n{program.complaints()}")
        return
    seconds = last.at_s - opened_s
    whole_s = seconds + warmed_up.at_s - program.began_s
    rates = {WARM: inputs.then.count / seconds, WHOLE: (inputs.first.count + inputs.then.count) / whole_s}
    contents = results.read(counts=inputs.counted() is not None, misses=work.kind == "table")
    if problems := _problems(stage, work, trial, contents):
        said = f"{round_to(rates[WARM]):,g} {WARM}, and that is no figure: "
        stage.note(system.name, work, said + "; ".join(problems))
        return
    stage.read(system.name, work, {**rates, **_in_batches(program, opened_s)})
    if work.late_share and not work.routes_late:
        stage.note(system.name, work, f"{_missing(stage, trial, contents):,} late events were dropped")


def waiting(
    stage: Stage, results: Results, program: Running, *, quiet_s: float
) -> Callable[[int], tuple[Seen, bool]]:
    """A function that waits for a number of rows of a program."""
    return partial(
        results.wait,
        quiet_s=quiet_s,
        stall_s=stage.plan.stall_s,
        deadline_s=stage.plan.deadline_s,
        is_alive=program.is_alive,
    )


def _in_batches(program: Running, opened_s: float) -> dict[str, float]:
    """The rate within full micro-batches, if the program prints them."""
    printed = [one for one in program.batches() if one["at_s"] - one["ms"] / 1000 >= opened_s and one["rows"]]
    largest = max((one["rows"] for one in printed), default=0)
    full = [one for one in printed if one["rows"] >= FULL_BATCH * largest]
    if not full:
        return {}
    return {BATCHES: 1000 * sum(one["rows"] for one in full) / sum(one["ms"] for one in full)}


def _problems(stage: Stage, work: Work, trial: Trial, contents: Contents) -> list[str]:
    """What is wrong with the written rows: a system that loses rows does not do the work."""
    problems = []
    fewest, most = trial.inputs.rows_of_all()
    if not work.late_share and not fewest <= contents.rows <= most:
        problems.append(f"{contents.rows:,} rows instead of {fewest:,}")
    may_drop = work.late_share and not work.routes_late
    if (bounds := trial.inputs.counted()) is not None and not may_drop:
        missing = _missing(stage, trial, contents)
        if not bounds[0] - bounds[1] <= missing <= 0:
            problems.append(f"the windows hold {bounds[0] - missing:,} events instead of {bounds[0]:,}")
    # If a table is read together with the events, the first events find it empty.
    first = trial.inputs.first
    unmatched = contents.unmatched - first.count - sum(map(len, first.closing.values()))
    if unmatched > 0:
        problems.append(f"at least {unmatched:,} rows have no match")
    return problems


def _missing(stage: Stage, trial: Trial, contents: Contents) -> int:
    """How many events are neither in windows nor among the late."""
    counted = trial.inputs.counted()
    assert counted is not None
    return counted[0] - contents.counted - stage.results(trial.topics["late"]).read().rows
