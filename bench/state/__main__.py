"""CPU time of a micro-batch that touches a thousand keys, of as many as the state has.

A tumbling window by key with a count and a sum, without Spark: hashing, lookup, kernel, write and merges.
With two cores the keys are in two partitions, each in a process. `python -m bench.state [KEYS …]`.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.columns.aggregates import AggregateSpec
from headrace.columns.hopping_windows import HoppingAssigner
from headrace.columns.keyed import Times
from headrace.columns.window_assigners import WindowKernelSettings
from headrace.state.files import LocalStateFiles
from headrace.state.keyed import KeyedState
from headrace.state.versions import Versions

CORES = (1, 2)
KEYS = (10_000, 100_000, 1_000_000, 10_000_000)
TOUCHED, BATCHES, LOADED_AT_ONCE = 1_000, 100, 1_000_000
SPECS = (
    AggregateSpec(name="events", kind="count"),
    AggregateSpec(name="total", kind="sum", column="amount"),
)
OUTPUT = pa.schema([(name, pa.int64()) for name in ("start", "end", "key", "events", "total")])
LONG_US = 10**12
WINDOWS = HoppingAssigner(size_us=LONG_US, every_us=LONG_US)
OPEN = Times(0, 0)


def panes(keys: NDArray[np.int64]) -> pa.Table:
    """The partial aggregates of one event for each key."""
    times = pa.array(np.ones(len(keys), np.int64), pa.timestamp("us", "UTC"))
    rows = pa.table({"at": times, "key": keys, "amount": keys})
    aggregate = WINDOWS.partial_aggregation("at", ("key",), SPECS)
    return pa.Table.from_batches(list(aggregate(rows.to_batches(), OPEN)))


@dataclass(frozen=True, slots=True)
class Measured:
    """A partition: the time of each batch, and its state after the last."""

    cpu_ms: list[float]
    wall_ms: list[float]
    byte_size: int
    runs: int


def measure(keys: int, touched: int) -> Measured:
    """Fill the state of a partition with keys, and time batches that touch some of them."""
    chance = np.random.default_rng(1)
    kernel = WINDOWS.kernel(WindowKernelSettings(keys=("key",), specs=SPECS, output=OUTPUT))
    with tempfile.TemporaryDirectory(prefix="headrace-state-") as folder:
        files = LocalStateFiles(Path(folder))
        state = KeyedState(files=files, keys=("key",), kernel=kernel)
        parts = np.array_split(chance.permutation(keys), max(1, keys // LOADED_AT_ONCE))
        for version, part in enumerate(parts):
            state.advance(version, panes(part), OPEN)
        cpu_ms, wall_ms = [], []
        for version in range(len(parts), len(parts) + BATCHES):
            rows = panes(chance.integers(0, keys, touched))
            begun, begun_cpu = time.perf_counter(), time.process_time()
            state.advance(version, rows, OPEN)
            cpu_ms.append(1000 * (time.process_time() - begun_cpu))
            wall_ms.append(1000 * (time.perf_counter() - begun))
        manifest = Versions(files).read(len(parts) + BATCHES - 1)
        return Measured(cpu_ms, wall_ms, manifest.byte_size, len(manifest.names))


def line(keys: int, cores: int) -> str:
    """What batches cost with so many keys of state, in as many partitions as cores."""
    with get_context("fork").Pool(cores) as pool:
        found = pool.starmap(measure, [(keys // cores, TOUCHED // cores)] * cores)
    cpu_ms = np.sum([each.cpu_ms for each in found], axis=0)
    wall_ms = np.max([each.wall_ms for each in found], axis=0)
    size_mb, runs = sum(each.byte_size for each in found) / 1e6, sum(each.runs for each in found)
    return (
        f"{keys:>12,} keys, {cores} cores: {np.mean(cpu_ms):6.1f} ms of CPU a batch "
        f"(median {np.median(cpu_ms):.1f}, longest {max(cpu_ms):.1f}), {np.mean(wall_ms):6.1f} ms of time, "
        f"{size_mb:,.1f} MB in {runs} runs"
    )


def main(arguments: Sequence[str]) -> None:
    """Print a line for each number of keys and of cores."""
    for keys in map(int, arguments) if arguments else KEYS:
        for cores in CORES:
            print(line(keys, cores), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
