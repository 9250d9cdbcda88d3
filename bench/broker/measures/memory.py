"""Memory after all loads of a stage."""

from bench.broker.stage import Stage
from bench.processes import resident_megabytes


def measure_memory(stage: Stage) -> None:
    """The current resident memory of each system."""
    for entry in stage.entries:
        stage.read(entry, "memory", "after load", {"MB": resident_megabytes(entry.node.pid)})
