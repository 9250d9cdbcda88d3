"""Kernels of windows run batch by batch, as a keyed stage would run them; and events to run them on."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from headrace.columns.aggregates import AggregateSpec
from headrace.columns.keyed import Kernel, KernelResult, Times
from headrace.state import runs, versions
from headrace.state.keyed import KeyedState
from headrace.state.versions import Versions
from tests.state.memory_files import MemoryStateFiles

TIME = pa.timestamp("us", "UTC")
SPECS = (
    AggregateSpec(name="events", kind="count"),
    AggregateSpec(name="values", kind="count", column="value"),
    AggregateSpec(name="total", kind="sum", column="value"),
    AggregateSpec(name="smallest", kind="min", column="value"),
    AggregateSpec(name="largest", kind="max", column="value"),
    AggregateSpec(name="mean", kind="mean", column="value"),
    AggregateSpec(name="whole", kind="sum", column="whole"),
    AggregateSpec(name="least", kind="min", column="whole"),
)
RESULTS = [
    ("events", pa.int64()),
    ("values", pa.int64()),
    ("total", pa.float64()),
    ("smallest", pa.float64()),
    ("largest", pa.float64()),
    ("mean", pa.float64()),
    ("whole", pa.int64()),
    ("least", pa.int64()),
]


class Event(NamedTuple):
    at: int
    key: str | None
    value: float | None
    whole: int


def events(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[Event]]]:
    """Events in batches: out of order, with ties, and with keys and values that are null."""
    event = st.builds(
        Event,
        at=st.integers(1, 60),
        key=st.sampled_from(["a", "b", None]),
        value=st.none() | values,
        whole=st.integers(-3, 3),
    )
    return st.lists(st.lists(event, max_size=12), min_size=1, max_size=6)


def table(rows: Sequence[Event]) -> pa.Table:
    at, keys, values, wholes = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = {"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.float64())}
    return pa.table({"at": pa.array(at, TIME), **columns, "whole": pa.array(wholes, pa.int64())})


def watermarks(batches: Sequence[Sequence[Event]], lateness: int) -> list[Times]:
    """The two watermarks of each batch, and of one more behind the last, as Spark would have them."""
    marks = [0, 0]
    for batch in batches:
        marks.append(max([marks[-1], *(event.at - lateness for event in batch)]))
    return [Times(late, now) for late, now in itertools.pairwise(marks)]


def in_time(batches: Sequence[Sequence[Event]], lateness: int) -> list[Event]:
    """The events whose time the watermark had not passed when they came."""
    times = watermarks(batches, lateness)
    pairs = zip(batches, times, strict=False)
    return [event for batch, now in pairs for event in batch if event.at > now.late_us]


def run_batches(
    kernel: Kernel,
    batches: Sequence[Sequence[Event]],
    lateness: int,
    prepare: Any = table,
    *,
    is_stored: bool = True,
) -> tuple[list[dict[str, Any]], int]:
    """All results, and how many events were late; each batch is run twice, with its rows in another order.

    If `is_stored`, the second run sees only the part of the state that the store gives it.
    """
    results: list[dict[str, Any]] = []
    late, state = 0, None
    files = MemoryStateFiles()
    stored = KeyedState(files=files, keys=("key",), kernel=kernel)
    for version, (batch, times) in enumerate(zip([*batches, []], watermarks(batches, lateness), strict=True)):
        outcome = kernel(prepare(batch), state, times)
        shuffled = random.Random(0).sample(batch, len(batch))
        if is_stored:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(versions, "FAN", 2)
                patch.setattr(versions, "SMALLEST", 2)
                patch.setattr(runs, "CHUNK_ROWS", 3)
                output = stored.advance(version, prepare(shuffled), times)
            again = KernelResult(output, None, Versions(files).read(version).late)
        else:
            again = kernel(prepare(shuffled), state, times)
        assert same(outcome, again)
        results += outcome.output.to_pylist()
        late += outcome.late
        state = outcome.state
    return results, late


def same(one: KernelResult, other: KernelResult) -> bool:
    """Whether two outcomes are the same to the last bit; rows that differ in nothing may change places."""
    return bits(one.output) == bits(other.output) and one.late == other.late


def bits(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())
