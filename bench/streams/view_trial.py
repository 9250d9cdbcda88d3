"""A view over two tables: the time from a thousand changes until all view rows are written."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

from bench.page_cache import settle
from bench.streams.gate import Gate, Writer
from bench.streams.inputs import BEGIN_MS, PIECE, Message
from bench.streams.running import Running
from bench.streams.stage import Stage
from bench.streams.systems import System
from bench.streams.trial import QUIET_SECONDS, task_of, waiting
from bench.streams.works import Work

SECONDS = "s"
IN_EACH = 100
"""People in a department."""
MOVES, RENAMES = 990, 10


def try_view(stage: Stage, system: System, work: Work) -> None:
    """Measure a view over tables, which are there already, while they change."""
    people = int(work.table_rows * stage.plan.table_share)
    topics = stage.make_topics("events", "table", "output")
    with ExitStack() as stack:
        stack.callback(stage.delete_topics, topics)
        gate = Gate(stage.bootstrap)
        stack.callback(gate.close)
        writer = Writer(stage.bootstrap)
        writer.write(topics["table"], (department(one, 0) for one in range(people // IN_EACH)))
        for begin in range(0, people, PIECE):
            end = min(begin + PIECE, people)
            writer.write(topics["events"], (person(one, one, people) for one in range(begin, end)))
        writer.settle()
        settle()
        program = stack.enter_context(Running(system, task_of(stage, work, topics)))
        _measure(stage, system, work, gate, program, topics, people)


def _measure(
    stage: Stage,
    system: System,
    work: Work,
    gate: Gate,
    program: Running,
    topics: dict[str, str],
    people: int,
) -> None:
    results = stage.results(topics["output"])
    wait = waiting(stage, results, program, quiet_s=2 * QUIET_SECONDS)
    seen, is_done = wait(people)
    if is_done:
        program.wait_until_idle(stage.plan.rest_s)
    departments = people // IN_EACH
    moves, renames = min(MOVES, departments // 2), min(RENAMES, departments // 4)
    for number in range(stage.plan.view_rounds):
        if not is_done:
            program.stop()
            stage.note(system.name, work, f"no figure in round {number}\n{program.complaints()}")
            return
        gate.write(topics["events"], moved(number, moves, people))
        gate.write(topics["table"], renamed(number, renames, people))
        gate.settle()
        before = results.end()
        opened_s = time.time()
        gate.open()
        seen, is_done = wait(before + moves + renames * IN_EACH)
        if number and is_done:
            stage.read(system.name, work, {SECONDS: seen.at_s - opened_s})
    # The last titles have the number of their round behind a dot, and nothing else has a dot.
    shown = results.count(f'.{stage.plan.view_rounds}"')
    if shown != renames * IN_EACH:
        stage.note(system.name, work, f"{shown:,} rows have a new title instead of {renames * IN_EACH:,}")


def person(one: int, dept: int, people: int) -> Message:
    """A person in a department; there is one department per hundred people."""
    value = f'{{"id":{one},"name":"name of {one}","dept":{dept % (people // IN_EACH)}}}'
    return {"key": str(one), "value": value, "timestamp": BEGIN_MS}


def department(one: int, version: int) -> Message:
    """A department under its newest title."""
    return {
        "key": str(one),
        "value": f'{{"id":{one},"title":"department {one}.{version}"}}',
        "timestamp": BEGIN_MS,
    }


def moved(number: int, moves: int, people: int) -> Iterator[Message]:
    """The first people, who move to the next department."""
    return (person(one, one + number + 1, people) for one in range(moves))


def renamed(number: int, renames: int, people: int) -> Iterator[Message]:
    """The last departments with a new title: no person who moves is in them."""
    return (department(people // IN_EACH - 1 - one, number + 1) for one in range(renames))
