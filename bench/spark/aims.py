"""The performance targets of the Spark source and sinks."""

from bench.aims import Aim
from bench.spark.measures import latency, reading, writing

AIMS = (
    *(
        Aim(measure=reading.MEASURE, cell=f"{way}, 100 B", unit="rows/s", against="connector", at_least=4)
        for way in (reading.TYPED, reading.WINDOWED)
    ),
    Aim(
        measure=writing.MEASURE,
        cell=f"{writing.EXACTLY_ONCE}, 100 B",
        unit="rows/s",
        against="connector",
        at_least=1,
    ),
    Aim(measure=latency.MEASURE, cell=f"{latency.STATELESS}, transactional, p50", unit="ms", at_most=100),
    Aim(measure=latency.MEASURE, cell=f"{latency.WINDOWED}, transactional, p50", unit="ms", at_most=220),
)
