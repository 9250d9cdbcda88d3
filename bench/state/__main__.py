"""CPU time of a micro-batch that touches a thousand keys, of as many as the state has.

A tumbling window by key with a count and a sum, in one partition and without Spark: hashing, lookup, kernel,
write and merges. `python -m bench.state [KEYS …]`.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
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


def measure(folder: Path, keys: int) -> str:
    """Fill a state with keys, and time batches that touch some of them."""
    chance = np.random.default_rng(1)
    kernel = WINDOWS.kernel(WindowKernelSettings(keys=("key",), specs=SPECS, output=OUTPUT))
    state = KeyedState(files=LocalStateFiles(folder), keys=("key",), kernel=kernel)
    parts = np.array_split(chance.permutation(keys), max(1, keys // LOADED_AT_ONCE))
    for version, part in enumerate(parts):
        state.advance(version, panes(part), OPEN)
    spent_ms = []
    for version in range(len(parts), len(parts) + BATCHES):
        rows = panes(chance.integers(0, keys, TOUCHED))
        begun = time.process_time()
        state.advance(version, rows, OPEN)
        spent_ms.append(1000 * (time.process_time() - begun))
    manifest = Versions(LocalStateFiles(folder)).read(len(parts) + BATCHES - 1)
    return (
        f"{keys:>12,} keys: {np.mean(spent_ms):6.1f} ms a batch (median {np.median(spent_ms):.1f}, "
        f"longest {max(spent_ms):.1f}), {manifest.byte_size / 1e6:,.1f} MB in {len(manifest.names)} runs"
    )


def main(arguments: Sequence[str]) -> None:
    """Print a line for each number of keys."""
    for keys in map(int, arguments) if arguments else KEYS:
        with tempfile.TemporaryDirectory(prefix="headrace-state-") as folder:
            print(measure(Path(folder), keys), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
