"""Every aggregate against lists, in tumbling, hopping, session and sliding windows, whatever the batches."""

import math
import statistics
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.aggregates import AggregateSpec, partials_of
from headrace.columns.hopping_windows import PANE, HoppingAssigner
from headrace.columns.keyed import Times
from headrace.columns.lists import Lists
from headrace.columns.sliding import SlidingKernel
from headrace.columns.window_assigners import WindowKernelSettings
from tests.columns.batched import TIME, Event, events, in_time, run_batches, table, watermarks
from tests.columns.test_sliding import EXACT

SPECS = (
    AggregateSpec(name="deviation", kind="stddev_samp", column="value"),
    AggregateSpec(name="variance", kind="var_pop", column="value"),
    AggregateSpec(name="distinct", kind="count_distinct", column="whole"),
    AggregateSpec(name="about", kind="approx_count_distinct", column="whole", arguments=(400.0,)),
    AggregateSpec(name="greatest", kind="greatest", column="whole"),
    AggregateSpec(name="least", kind="least", column="value"),
    AggregateSpec(name="first", kind="first", column="value", order="at"),
    AggregateSpec(name="last", kind="last_value", column="whole", order="at"),
    AggregateSpec(name="best", kind="max_by", column="whole", order="value"),
    AggregateSpec(name="worst", kind="min_by", column="whole", order="value"),
    AggregateSpec(name="all", kind="collect_list", column="whole", order="at"),
    AggregateSpec(name="set", kind="collect_set", column="value"),
    AggregateSpec(name="median", kind="percentile", column="value", arguments=(0.5,)),
    AggregateSpec(name="high", kind="percentile_disc", column="whole", arguments=(0.25, 0.9)),
)
RESULTS = pa.schema(
    {
        "deviation": pa.float64(),
        "variance": pa.float64(),
        "distinct": pa.int64(),
        "about": pa.int64(),
        "greatest": pa.int64(),
        "least": pa.float64(),
        "first": pa.float64(),
        "last": pa.int64(),
        "best": pa.int64(),
        "worst": pa.int64(),
        "all": pa.list_(pa.int64()),
        "set": pa.list_(pa.float64()),
        "median": pa.float64(),
        "high": pa.list_(pa.int64()),
    }
)
TYPES = {"value": pa.float64(), "whole": pa.int64(), "at": TIME}


def expected(seen: list[Event]) -> list[Any]:
    valued = [event for event in seen if event.value is not None]
    values = sorted(event.value for event in valued)
    wholes = sorted(event.whole for event in seen)
    ordered = sorted(seen, key=lambda event: (event.at, event.whole))
    last_at = max(event.at for event in seen)
    return [
        statistics.stdev(values) if len(values) > 1 else None,
        statistics.pvariance(values) if values else None,
        len(set(wholes)),
        len(set(wholes)),
        wholes[-1],
        values[0] if values else None,
        min((event.at, event.value) for event in valued)[1] if values else None,
        min(event.whole for event in seen if event.at == last_at),
        min((-event.value, event.whole) for event in valued)[1] if values else None,
        min((event.value, event.whole) for event in valued)[1] if values else None,
        [event.whole for event in ordered],
        sorted(set(values)),
        statistics.median(values) if values else None,
        [wholes[max(0, math.ceil(share * len(wholes)) - 1)] for share in (0.25, 0.9)],
    ]


def rounded(row: list[Any]) -> list[Any]:
    return [None if value is None else round(value, 9) for value in row[:2]] + row[2:]


def panes(hops: HoppingAssigner, batch: list[Event]) -> pa.Table:
    aggregation = hops.partial_aggregation("at", ("key",), SPECS)
    made = [
        piece
        for part in (batch[::2], batch[1::2])
        for piece in aggregation(table(part).to_batches(), Times(0, 0))
    ]
    kinds = [("key", pa.string()), (PANE, pa.int64())]
    kinds += [(partial.name, partial.type(TYPES)) for partial in partials_of(SPECS)]
    return pa.Table.from_batches(made, schema=pa.schema(kinds))


@given(batches=events(EXACT), shape=st.sampled_from([(6, 6), (6, 2), (60, 4), (3, 7)]))
@settings(max_examples=50, deadline=None)
def test_every_aggregate_of_a_window_is_that_of_its_rows(
    batches: list[list[Event]], shape: tuple[int, int]
) -> None:
    hops = HoppingAssigner(size_us=shape[0], every_us=shape[1])
    output = pa.schema([("start", pa.int64()), ("end", pa.int64()), ("key", pa.string()), *RESULTS])
    kernel = hops.kernel(WindowKernelSettings(keys=("key",), specs=SPECS, output=output))
    results, _ = run_batches(kernel, batches, 100, lambda batch: panes(hops, batch), is_stored=False)
    held: dict[tuple[int, str | None], list[Event]] = defaultdict(list)
    for event in (event for batch in batches for event in batch):
        first = event.at // hops.every_us - hops.size_us // hops.every_us
        for number in range(first, event.at // hops.every_us + 1):
            if number * hops.every_us <= event.at < number * hops.every_us + hops.size_us:
                held[number * hops.every_us, event.key].append(event)
    until = watermarks(batches, 100)[-1].watermark_us - hops.size_us
    wanted = [[start, key, *rounded(expected(seen))] for (start, key), seen in held.items() if start <= until]
    found = [list(row.values()) for row in results]
    made = [[row[0], row[2], *rounded(row[3:])] for row in found]
    assert sorted(made, key=repr) == sorted(wanted, key=repr)


@given(batches=events(EXACT), size=st.sampled_from([1, 5, 50]))
@settings(max_examples=40, deadline=None)
def test_every_aggregate_of_a_sliding_window_is_that_of_its_rows(
    batches: list[list[Event]], size: int
) -> None:
    output = pa.schema([("at", TIME), ("key", pa.string()), *RESULTS])
    kernel = SlidingKernel(time="at", keys=("key",), specs=SPECS, size_us=size, output=output)
    results, _ = run_batches(kernel, batches, 5, is_stored=False)
    accepted, until = in_time(batches, 5), watermarks(batches, 5)[-1].watermark_us
    wanted = [
        [event.at, event.key, *rounded(expected(seen))]
        for event in accepted
        if event.at <= until
        for seen in [[e for e in accepted if e.key == event.key and event.at - size < e.at <= event.at]]
    ]
    found = [list(row.values()) for row in results]
    made = [[int(row[0].timestamp() * 1e6 + 0.5), row[1], *rounded(row[2:])] for row in found]
    assert sorted(made, key=repr) == sorted(wanted, key=repr)


@pytest.mark.parametrize("values", [1_000, 20_000, 300_000])
def test_an_approximate_count_is_close(values: int) -> None:
    import numpy as np

    hashes = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, values)
    spec = AggregateSpec(name="about", kind="approx_count_distinct", column="v", arguments=(402.0,))
    (partial,) = spec.partials
    lists = Lists(flat=pa.array(np.tile(hashes, 2)), offsets=np.array([0, 2 * values]))
    from headrace.columns.aggregates import list_result

    (found,) = list_result(spec, partial.tidied(lists)).to_pylist()
    assert found == pytest.approx(values, rel=0.2)


def test_a_variance_is_exact_far_from_zero() -> None:
    rows = pa.table({"value": [1e9 + 1, 1e9 + 2, 1e9 + 3]})
    spec = AggregateSpec(name="variance", kind="var_samp", column="value")
    import numpy as np

    from headrace.columns.aggregates import Ranges, parts_of_rows

    ranges = Ranges(firsts=np.array([0]), lasts=np.array([2]), blocks=np.arange(3))
    assert ranges.result(spec, parts_of_rows(rows, partials_of([spec]))).to_pylist() == [1.0]
