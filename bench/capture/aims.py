"""The performance targets of capture."""

from collections.abc import Iterator

from bench.aims import Aim

THROUGHPUT, LATENCY, FOOTPRINT = "throughput", "commit to topic", "process"
SNAPSHOT, CHANGES = "snapshot", "changes"
ROWS, EVENTS, MS, MB, SECONDS = "rows/s", "events/s", "ms", "MB", "s"
TIMES_DEBEZIUM = 5.0


def aims() -> Iterator[Aim]:
    """All of them."""
    yield Aim(measure=THROUGHPUT, cell=SNAPSHOT, unit=ROWS, against="debezium", at_least=TIMES_DEBEZIUM)
    yield Aim(measure=THROUGHPUT, cell=CHANGES, unit=EVENTS, against="debezium", at_least=TIMES_DEBEZIUM)
    yield Aim(measure=LATENCY, cell="p99", unit=MS, at_most=10)
    yield Aim(measure=FOOTPRINT, cell="memory in the end", unit=MB, at_most=100)
