"""The performance targets of windows, joins and views."""

from collections.abc import Iterator

from bench.aims import Aim
from bench.streams.systems import KINDS
from bench.streams.trial import BATCHES, WARM
from bench.streams.view_trial import SECONDS
from bench.streams.works import WORKS, Work

RATES = {
    "tumbling": 700_000,
    "table": 400_000,
    "table-1m": 250_000,
    "streams": 150_000,
    "sliding": 200_000,
    "hopping": 150_000,
}
"""Events a second, in warm micro-batches."""
VIEW_SECONDS = 1.0
TIMES_A_PEER = 2.0
PEERS = ("flink", "pathway", "bytewax", "quix")


def aims() -> Iterator[Aim]:
    """All targets: absolute ones, and ratios to each system that supports a work."""
    for work in WORKS:
        if work.name in RATES:
            yield Aim(measure=work.measure, cell=work.cell, unit=BATCHES, at_least=RATES[work.name])
        if work.kind == "view":
            yield Aim(measure=work.measure, cell=work.cell, unit=SECONDS, at_most=VIEW_SECONDS)
        yield from (_beside(work, peer) for peer in PEERS if work.kind in KINDS[peer] and not work.alone)


def _beside(work: Work, peer: str) -> Aim:
    if work.kind == "view":
        share = 1 / TIMES_A_PEER
        return Aim(measure=work.measure, cell=work.cell, unit=SECONDS, against=peer, at_most=share)
    return Aim(measure=work.measure, cell=work.cell, unit=WARM, against=peer, at_least=TIMES_A_PEER)
