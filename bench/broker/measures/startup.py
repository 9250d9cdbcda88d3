"""Start-up and idle memory: each system alone, started several times on the same folder.

The clock starts with the process. The first start fills file caches and formats folders: it is not counted.
"""

import threading
import time

from bench.broker.stage import Entry, Stage
from bench.processes import START_SECONDS, resident_megabytes, wait_until

MEASURE = "start-up"
IDLE_SECONDS = 1.0


def measure_startup(stage: Stage) -> None:
    """Start and stop each system; leaves all of them stopped."""
    for entry in stage.entries:
        entry.node.start()
        entry.node.stop()
        for _ in range(stage.plan.starts):
            _start_once(stage, entry)
            time.sleep(IDLE_SECONDS)  # what a system does just after its start counts as its idle state, too
            memory = resident_megabytes(entry.node.pid)
            stage.read(entry, "memory", "idle", {"MB": memory})
            entry.node.stop()


def _start_once(stage: Stage, entry: Entry) -> None:
    answered: list[float] = []
    started = time.perf_counter()
    asker = threading.Thread(target=_await_answer, args=(entry, started, answered), daemon=True)
    asker.start()
    entry.node.start()
    ready = time.perf_counter() - started
    asker.join()
    stage.read(entry, MEASURE, "first answer to a client", {"s": answered[0]})
    if entry.system.prints_ready:
        stage.read(entry, MEASURE, "ready line", {"s": ready})


def _await_answer(entry: Entry, started: float, answered: list[float]) -> None:
    if wait_until(lambda: entry.system.answers(entry.node.address), START_SECONDS):
        answered.append(time.perf_counter() - started)
