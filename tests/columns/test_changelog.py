"""Operations over rows that are retracted: after every batch the results equal a recomputation."""

import doctest
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.columns import changelog
from headrace.columns.aggregates import AggregateSpec
from headrace.columns.changelog import WEIGHT, ChangelogKernel, Operation, UnknownRetraction
from headrace.columns.changing_joins import ChangingFirstRows, ChangingJoin
from headrace.columns.changing_windows import ChangingWindows, WindowRows
from headrace.columns.hopping_windows import HoppingAssigner, HoppingKernel
from headrace.columns.joining import From
from headrace.columns.keyed import Kernel, Times
from headrace.columns.ranking import ChangingRanking, Ranking, Ties
from headrace.columns.window_assigners import WindowKernelSettings
from headrace.columns.zoned_windows import WINDOW_END, WINDOW_START
from headrace.state.keyed import KeyedState
from tests.columns.batched import TIME, Event, events, watermarks
from tests.columns.test_hopping_windows import summed
from tests.state.memory_files import MemoryStateFiles

Row = tuple[Any, ...]
Prepare = Callable[[Sequence[tuple[Row, int]]], pa.Table]
"""Makes the input of a kernel of rows and their weights."""

VALUE = st.integers(0, 3)
Actions = list[list[Row | int]]


def actions_of(
    keys: Sequence[Any], latest: int, value: st.SearchStrategy[int] = VALUE
) -> st.SearchStrategy[Actions]:
    """Batches of rows that are inserted, and of numbers of rows that are retracted.

    Times advance from batch to batch in most examples, so that state expires step by step.
    """
    row = st.tuples(st.sampled_from(keys), st.integers(1, latest), value)
    batches = st.lists(st.lists(row | st.integers(0, 99), max_size=8), min_size=1, max_size=6)
    return st.builds(_advancing, batches, st.sampled_from([0, 2, 5, 9]), st.integers(1, latest))


def _advancing(batches: Actions, step: int, latest: int) -> Actions:
    return [
        [
            action
            if isinstance(action, int)
            else (action[0], 1 + (action[1] - 1) % latest + n * step, action[2])
            for action in batch
        ]
        for n, batch in enumerate(batches)
    ]


ACTIONS = actions_of(["a", "b"], 40)
LATENESS = st.sampled_from([0, 1, 3, 8, 20])
SPECS = (
    AggregateSpec(name="count", kind="count"),
    AggregateSpec(name="sum", kind="sum", column="value"),
    AggregateSpec(name="max", kind="max", column="value"),
    AggregateSpec(name="all", kind="percentile_disc", column="value", arguments=(0.5,)),
)
COLUMNS = {"start": pa.int64(), "end": pa.int64(), "key": pa.string(), "count": pa.int64(), "sum": pa.int64()}
WINDOWS = pa.schema({**COLUMNS, "max": pa.int64(), "all": pa.int64()})


def with_weight(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(WEIGHT, pa.int64()))


def batches_of(
    actions: Sequence[Sequence[Row | int]], lateness: int, time_of: Callable[[Row], int]
) -> Iterator[tuple[list[tuple[Row, int]], Times, Counter[Row]]]:
    """The changes of each batch, its times, and all rows that are there after it; the last one has none."""
    times = [[row[1] for row in batch if isinstance(row, tuple)] for batch in actions]
    marks = [0, 0]
    for batch in times:
        marks.append(max([marks[-1], *(at - lateness for at in batch)]))
    rows: Counter[Row] = Counter()
    for batch, (late, now) in zip([*actions, []], pairwise(marks), strict=True):
        changes: list[tuple[Row, int]] = []
        for action in batch:
            open_rows = sorted(row for row in rows.elements() if time_of(row) > late)
            if isinstance(action, tuple):
                changes.append((action, 1))
            elif open_rows:
                changes.append((open_rows[action % len(open_rows)], -1))
            else:
                continue
            row, weight = changes[-1]
            if time_of(row) > late:
                rows[row] += weight
        yield changes, Times(late, now), +rows


def check(
    operation: Operation,
    output: pa.Schema,
    keys: tuple[str, ...],
    actions: Sequence[Sequence[Row | int]],
    lateness: int,
    prepare: Prepare,
    expected: Callable[[list[Row]], Counter[Row]],
    time_of: Callable[[Row], int],
    *,
    closed: Callable[[Row, int], bool] | None = None,
) -> None:
    """Run a kernel over batches; `closed` says of a final result whether the watermark has closed it."""
    is_final = closed is not None
    kernel = ChangelogKernel(
        operation=operation, output=output if is_final else with_weight(output), is_final=is_final
    )
    stored = KeyedState(files=MemoryStateFiles(), keys=keys, kernel=kernel)
    emitted: Counter[Row] = Counter()
    for version, (changes, times, rows) in enumerate(batches_of(actions, lateness, time_of)):
        for row in stored.advance(version, prepare(changes), times).to_pylist():
            emitted[tuple(row[name] for name in output.names)] += row.get(WEIGHT, 1)
        wanted = expected(sorted(rows.elements()))
        if closed is not None:
            wanted = Counter({row: n for row, n in wanted.items() if closed(row, times.watermark_us)})
        assert {row: n for row, n in emitted.items() if n} == dict(wanted)


def plain(changes: Sequence[tuple[Row, int]]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([row[0] for row, _ in changes], pa.string()),
            "at": pa.array([row[1] for row, _ in changes], TIME),
            "value": pa.array([row[2] for row, _ in changes], pa.int64()),
            WEIGHT: pa.array([weight for _, weight in changes], pa.int64()),
        }
    )


def spread(assigner: HoppingAssigner | None, changes: Sequence[tuple[Row, int]]) -> pa.Table:
    bounds = {} if assigner is None else {WINDOW_START: pa.int64(), WINDOW_END: pa.int64()}
    schema = pa.schema([*bounds.items(), *zip(plain([]).schema.names, plain([]).schema.types, strict=True)])
    first = WindowRows(time="at", assigner=assigner, columns=tuple(schema.names))
    made = list(first(plain(changes).to_batches(max_chunksize=3), Times(0, 0)))
    return pa.Table.from_batches(made, schema=schema)


def aggregated(start: int, end: int, key: str, values: list[int]) -> Row:
    values.sort()
    return start, end, key, len(values), sum(values), values[-1], values[(len(values) + 1) // 2 - 1]


@given(actions=ACTIONS, lateness=LATENESS, shape=st.sampled_from([(5, 5), (6, 2), (3, 7)]))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("is_final", [False, True])
def test_windows(actions: Any, lateness: int, shape: tuple[int, int], *, is_final: bool) -> None:
    size, every = shape

    def expected(rows: list[Row]) -> Counter[Row]:
        found: dict[tuple[int, str], list[int]] = {}
        for key, at, value in rows:
            for start in range(at - at % every, at - size, -every):
                found.setdefault((start, key), []).append(value)
        return Counter(aggregated(start, start + size, key, values) for (start, key), values in found.items())

    check(
        ChangingWindows(name="window-1", time="at", keys=("key",), specs=SPECS, output=WINDOWS),
        WINDOWS,
        ("key", WINDOW_START),
        actions,
        lateness,
        lambda changes: spread(HoppingAssigner(size_us=size, every_us=every), changes),
        expected,
        # A row is taken as long as one of its windows is open; only tumbling windows are as simple.
        (lambda row: row[1] - row[1] % every + size) if size <= every else (lambda row: 10**6),
        closed=(lambda row, now: row[1] <= now) if is_final else None,
    ) if size <= every else check_open(actions, size, every, expected, is_final=is_final)


def check_open(actions: Any, size: int, every: int, expected: Any, *, is_final: bool) -> None:
    """Overlapping windows, without late rows: a row can be late for one and in time for another."""
    check(
        ChangingWindows(name="window-1", time="at", keys=("key",), specs=SPECS, output=WINDOWS),
        WINDOWS,
        ("key", WINDOW_START),
        actions,
        40,
        lambda changes: spread(HoppingAssigner(size_us=size, every_us=every), changes),
        expected,
        lambda row: row[1] + 1,
        closed=(lambda row, now: row[1] <= now) if is_final else None,
    )


@given(actions=ACTIONS, lateness=LATENESS, is_final=st.booleans())
@settings(max_examples=30, deadline=None)
def test_sessions_are_split_again_when_the_row_that_joined_them_is_retracted(
    actions: Any, lateness: int, *, is_final: bool
) -> None:
    gap = 4

    def expected(rows: list[Row]) -> Counter[Row]:
        found: list[Row] = []
        for key in "ab":
            session: list[tuple[int, int]] = []
            for _, at, value in sorted(row for row in rows if row[0] == key):
                if session and at - session[-1][0] > gap:
                    found.append(
                        aggregated(session[0][0], session[-1][0] + gap, key, [v for _, v in session])
                    )
                    session = []
                session.append((at, value))
            if session:
                found.append(aggregated(session[0][0], session[-1][0] + gap, key, [v for _, v in session]))
        return Counter(found)

    check(
        ChangingWindows(name="window-1", time="at", keys=("key",), specs=SPECS, output=WINDOWS, gap_us=gap),
        WINDOWS,
        ("key",),
        actions,
        lateness,
        lambda changes: spread(None, changes),
        expected,
        lambda row: row[1] + gap,
        closed=(lambda row, now: row[1] <= now) if is_final else None,
    )


@given(actions=ACTIONS, lateness=LATENESS, ties=st.sampled_from(["row_number", "rank", "dense_rank"]))
@settings(max_examples=30, deadline=None)
def test_rankings(actions: Any, lateness: int, ties: Ties) -> None:
    """A row's time is the end of its window, and its key what is ranked."""
    output = pa.schema({"at": TIME, "key": pa.string(), "value": pa.int64(), "rank": pa.int32()})
    ranking = Ranking(
        count=2,
        groups=("at",),
        order=(("value", "descending"), ("key", "ascending")),
        rank="rank",
        ties=ties,
        compared=1,
    )

    def tied(row: Row, group: list[Row]) -> int:
        better = [other[2] for other in group if other[2] > row[2]]
        return 1 + len(set(better) if ties == "dense_rank" else better)

    def expected(rows: list[Row]) -> Counter[Row]:
        found: list[Row] = []
        for at in {row[1] for row in rows}:
            group = sorted((row for row in rows if row[1] == at), key=lambda row: (-row[2], row[0]))
            ranks = range(1, len(group) + 1) if ties == "row_number" else [tied(row, group) for row in group]
            found += [(at, *row[::2], rank) for row, rank in zip(group, ranks, strict=True) if rank <= 2]
        return Counter(found)

    small = [
        [(r[0], r[1] % 4 + 10 * (r[1] // 10), r[2]) if isinstance(r, tuple) else r for r in b]
        for b in actions
    ]
    check(
        ChangingRanking(name="top-1", ranking=ranking, end="at"),
        output,
        ("at",),
        small,
        lateness,
        plain,
        lambda rows: Counter({(_time(row[0]), *row[1:]): n for row, n in expected(rows).items()}),
        lambda row: row[1],
    )


def _time(at: int) -> Any:
    return pa.scalar(at, TIME).as_py()


@given(
    actions=actions_of(["a", "b", None], 30),
    lateness=LATENESS,
    keeps=st.tuples(st.booleans(), st.booleans()),
)
@example(
    actions=[[("a", 5, 1), ("a", 8, 0)], [("b", 11, 0)], [("b", 11, 0)], [("a", 13, 1)]],
    lateness=0,
    keeps=(True, True),
)
@settings(max_examples=50, deadline=None)
def test_joins(actions: Any, lateness: int, keeps: tuple[bool, bool]) -> None:
    """Rows with an even value are of the left. A row without a match comes and goes with its matches."""
    output = pa.schema({"key": pa.string(), "left_at": TIME, "left": pa.int64(), "right": pa.int64()})
    milliseconds = [
        [(r[0] or "", r[1] * 1000, r[2]) if isinstance(r, tuple) else r for r in b] for b in actions
    ]
    before, after = 3000, 5000

    def prepare(changes: Sequence[tuple[Row, int]]) -> pa.Table:
        rows = plain(changes)
        keys = [row[0] or None for row, _ in changes]
        sides = [row[2] % 2 for row, _ in changes]
        return pa.table(
            {
                "side": pa.array(sides, pa.int8()),
                "code": pa.array([None if key is None else 7 for key in keys], pa.int64()),
                "at": rows["at"],
                "key": pa.array(keys, pa.string()),
                "left": pa.array([None if row[2] % 2 else row[2] for row, _ in changes], pa.int64()),
                "right": pa.array([row[2] if row[2] % 2 else None for row, _ in changes], pa.int64()),
                WEIGHT: rows[WEIGHT],
            }
        )

    def expected(rows: list[Row]) -> Counter[Row]:
        left, right = ([row for row in rows if row[2] % 2 == side] for side in (0, 1))
        found: Counter[Row] = Counter()
        matched: set[Row] = set()
        for one in left:
            for other in right:
                if one[0] and one[0] == other[0] and one[1] - before <= other[1] <= one[1] + after:
                    found[one[0], _time(one[1]), one[2], other[2]] += 1
                    matched |= {one, other}
        for key, at, value in left if keeps[0] else []:
            if (key, at, value) not in matched:
                found[key or None, _time(at), value, None] += 1
        for key, at, value in right if keeps[1] else []:
            if (key, at, value) not in matched:
                found[key or None, None, None, value] += 1
        return found

    check(
        ChangingJoin(
            name="join-1",
            keys=("key",),
            keeps=keeps,
            before_us=before,
            after_us=after,
            result=(From("key"), From("at", 0), From("left", 0), From("right", 1)),
            output=output,
        ),
        output,
        ("code",),
        milliseconds,
        lateness * 1000,
        prepare,
        expected,
        # Rows without a key match nothing, and are never late.
        lambda row: row[1] if row[0] else 10**9,
    )


@given(actions=ACTIONS, lateness=LATENESS, within=st.integers(0, 12))
@example(actions=[[("a", 5, 0)], [("a", 7, 0)]], lateness=0, within=12)
@settings(max_examples=50, deadline=None)
def test_the_next_row_of_a_key_passes_when_the_first_one_is_retracted(
    actions: Any, lateness: int, within: int
) -> None:
    output = pa.schema({"key": pa.string(), "at": TIME, "value": pa.int64()})

    def expected(rows: list[Row]) -> Counter[Row]:
        passed: list[Row] = []
        for row in rows:
            if not any(row[0] == key and row[1] - at <= within for key, at, _ in passed):
                passed.append(row)
        return Counter((key, _time(at), value) for key, at, value in passed)

    check(
        ChangingFirstRows(name="deduplicate-1", keys=("key",), time="at", within_us=within),
        output,
        ("key",),
        actions,
        lateness,
        plain,
        expected,
        lambda row: row[1],
    )


@given(
    batches=events(st.integers(-4, 4).map(float)),
    lateness=LATENESS,
    options=st.sampled_from([{"on_update": True}, {"allowed_lateness_us": 7}]),
)
@settings(max_examples=30, deadline=None)
def test_a_window_that_changes_retracts_what_it_has_emitted(
    batches: list[list[Event]], lateness: int, options: dict[str, Any]
) -> None:
    hops = HoppingAssigner(size_us=6, every_us=2, offset_us=1)
    specs = (AggregateSpec(name="n", kind="count"), AggregateSpec(name="sum", kind="sum", column="whole"))
    output = pa.schema(
        [
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("key", pa.string()),
            ("n", pa.int64()),
            ("sum", pa.int64()),
        ]
    )

    def runs(*, retracts: bool) -> list[list[dict[str, Any]]]:
        window = WindowKernelSettings(keys=("key",), specs=specs, output=output, retracts=retracts, **options)
        kernel: Kernel = HoppingKernel(settings=window, assigner=hops)
        stored = KeyedState(files=MemoryStateFiles(), keys=("key",), kernel=kernel)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.columns.test_hopping_windows.SPECS", specs)
            return [
                stored.advance(version, summed(hops, batch), times).to_pylist()
                for version, (batch, times) in enumerate(
                    zip([*batches, []], watermarks(batches, lateness), strict=True)
                )
            ]

    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    weights: Counter[Row] = Counter()
    for plain_rows, weighted_rows in zip(runs(retracts=False), runs(retracts=True), strict=True):
        newest |= {(row["start"], row["key"]): row for row in plain_rows}
        for row in weighted_rows:
            weights[tuple(row[name] for name in output.names)] += row[WEIGHT]
        assert +weights == Counter(tuple(row.values()) for row in newest.values())
        assert not -weights


def test_a_retraction_of_a_row_that_is_not_there_is_an_error() -> None:
    operation = ChangingFirstRows(name="deduplicate-1", keys=("key",), time="at", within_us=1)
    kernel = ChangelogKernel(operation=operation, output=plain([]).schema, is_final=False)
    with pytest.raises(
        UnknownRetraction, match="deduplicate-1 is told to retract a row that it does not have"
    ):
        kernel(plain([(("a", 1, 1), -1)]), None, Times(0, 0))


def test_the_examples_hold() -> None:
    result = doctest.testmod(changelog)
    assert (result.attempted > 0, result.failed) == (True, 0)
