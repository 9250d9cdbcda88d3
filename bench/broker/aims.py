"""The performance targets of the broker."""

from bench.aims import Aim
from bench.broker.measures.latency import MEASURE as LATENCY
from bench.broker.measures.startup import MEASURE as STARTUP

LARGE, SMALL = "1 KiB, 1 partition, page cache", "100 B, 1 partition, page cache"

LARGE_BY_TLS = "1 KiB, 1 partition, page cache, TLS"

AIMS = (
    Aim(measure="produce", cell=LARGE, unit="MB/s", against="kafka", at_least=1.4),
    Aim(measure="consume", cell=LARGE, unit="MB/s", against="kafka", at_least=1.3),
    Aim(measure="produce", cell=SMALL, unit="MB/s", against="kafka", at_least=1.1),
    Aim(measure="consume", cell=SMALL, unit="MB/s", against="kafka", at_least=1.3),
    Aim(measure="produce: broker's CPU", cell=LARGE, unit="s/GB", against="kafka", at_most=0.6),
    Aim(measure="consume: broker's CPU", cell=LARGE, unit="s/GB", against="kafka", at_most=0.6),
    Aim(measure="produce: broker's CPU", cell=SMALL, unit="s/GB", against="kafka", at_most=0.6),
    Aim(measure="consume: broker's CPU", cell=SMALL, unit="s/GB", against="kafka", at_most=0.6),
    Aim(measure="produce", cell=LARGE_BY_TLS, unit="MB/s", against="kafka", at_least=1.2),
    Aim(measure="consume", cell=LARGE_BY_TLS, unit="MB/s", against="kafka", at_least=1.2),
    Aim(measure=LATENCY, cell="p99, page cache", unit="ms", at_most=1),
    Aim(measure=STARTUP, cell="ready line", unit="s", at_most=0.3),
    Aim(measure="memory", cell="idle", unit="MB", at_most=60),
)
