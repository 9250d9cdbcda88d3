"""The kernel of joins: the pairs that plain Python finds, whatever the batches and the codes of keys."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns import segments
from headrace.columns.joining import From, JoinKernel
from headrace.columns.keyed import Times
from headrace.columns.segments import make_segments, merge_segments
from headrace.spark.keyed_state import BadState
from headrace.spark.segment_state import SegmentStore

MS = 1000
BEFORE, AFTER = 3, 7
OUTPUT = pa.schema([("key", pa.string()), ("left", pa.int64()), ("right", pa.int64())])
KEEPS = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}

Row = tuple[int, str | None, int | None]
"""The side, the key and the time of a row, in milliseconds."""
Pair = tuple[str | None, int | None, int | None]


def kernel(how: str) -> JoinKernel:
    return JoinKernel(
        keys=("key",),
        columns=(("left",), ("right",)),
        keeps=KEEPS[how],
        before_us=BEFORE * MS,
        after_us=AFTER * MS,
        result=(From("key"), From("left", 0), From("right", 1)),
        output=OUTPUT,
    )


def table(rows: Sequence[Row], first: int = 0) -> pa.Table:
    """The rows with numbers as names. Keys a and b have the same code, as if their hashes were equal."""
    names = range(first, first + len(rows))
    return pa.table(
        {
            "side": pa.array([side for side, _, _ in rows], pa.int8()),
            "code": pa.array(
                [None if key is None else (ord(key) - 1) // 2 for _, key, _ in rows], pa.int64()
            ),
            "at": pa.array([at if at is None else at * MS for _, _, at in rows], pa.timestamp("us", "UTC")),
            "key": pa.array([key for _, key, _ in rows], pa.string()),
            "left": pa.array(
                [n if row[0] == 0 else None for n, row in zip(names, rows, strict=True)], pa.int64()
            ),
            "right": pa.array(
                [n if row[0] == 1 else None for n, row in zip(names, rows, strict=True)], pa.int64()
            ),
        }
    )


def joined(
    how: str, batches: Sequence[Sequence[Row]], watermarks: Sequence[int], store: SegmentStore
) -> list[Pair]:
    """What comes of some batches; each goes on from what the one before stored."""
    found, number = [], 0
    for batch, rows in enumerate(batches):
        late, now = watermarks[batch], watermarks[batch + 1]
        made = kernel(how)(table(rows, number), store.read(batch), Times(late * MS, now * MS))
        if made.kept is None:
            store.keep(batch)
        else:
            store.write(batch, made.kept)
        for output in made.output:
            found += [(row["key"], row["left"], row["right"]) for row in output.to_pylist()]
        number += len(rows)
    return sorted(found, key=str)


def expected(how: str, batches: Sequence[Sequence[Row]], watermarks: Sequence[int]) -> list[Pair]:
    sides: tuple[list[Any], list[Any]] = ([], [])
    number = 0
    for rows, late in zip(batches, watermarks, strict=False):
        for side, key, at in rows:
            if at is None or at > late:
                sides[side].append((number, key, at))
            number += 1
    found: list[Pair] = []
    alone = tuple({name: (key, at) for name, key, at in side} for side in sides)
    for one, key, at in sides[0]:
        for other, other_key, then in sides[1]:
            if None in (key, at, then) or key != other_key or not at - BEFORE <= then <= at + AFTER:
                continue
            found.append((key, one, other))
            alone[0].pop(one, None)
            alone[1].pop(other, None)
    for side, bound in ((0, AFTER), (1, BEFORE)):
        for name, (key, at) in alone[side].items() if KEEPS[how][side] else ():
            if None in (key, at) or at + bound < watermarks[-1]:
                found.append((key, None, name) if side else (key, name, None))
    return sorted(found, key=str)


ROWS = st.tuples(
    st.integers(0, 1), st.sampled_from([None, *"abbbd"]), st.one_of(st.none(), st.integers(1, 40))
)
BATCHES = st.lists(st.lists(ROWS, max_size=12), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    how=st.sampled_from(sorted(KEEPS)),
    batches=BATCHES,
    steps=st.lists(st.integers(0, 12), min_size=7, max_size=7),
)
def test_pairs_and_lonely_rows_are_those_of_plain_python(
    tmp_path_factory: pytest.TempPathFactory, how: str, batches: list[list[Row]], steps: list[int]
) -> None:
    watermarks = [int(number) for number in np.cumsum([0, *steps])][: len(batches) + 1]
    store = SegmentStore(tmp_path_factory.mktemp("state"), 0)
    assert joined(how, batches, watermarks, store) == expected(how, batches, watermarks)


@pytest.mark.parametrize("how", KEEPS)
def test_many_batches_leave_few_segments_and_the_same_rows(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SMALLEST", 4)
    chance = np.random.default_rng(7)
    batches = [
        [
            (int(chance.integers(2)), "abcde"[chance.integers(5)], 3 * n + int(chance.integers(9)))
            for _ in range(6)
        ]
        for n in range(1, 60)
    ]
    # The watermark is far behind for a long time, so that segments are merged again and again.
    watermarks = [0] * 45 + [2 * n for n in range(45, 60)]
    store = SegmentStore(tmp_path, 0)
    assert joined(how, batches, watermarks, store) == expected(how, batches, watermarks)
    assert all(len(side) < 3 * segments.FAN for side in store.read(len(batches)).sides)
    assert len(list((tmp_path / "0").iterdir())) < 12 * segments.FAN


def test_a_repeated_batch_finds_what_it_found_before(tmp_path: Path) -> None:
    store, batches = SegmentStore(tmp_path, 0), [[(0, "a", 5)], [(1, "a", 6)], [(1, "a", 7), (0, "a", 9)]]
    watermarks = [0, 0, 4, 50]
    for end in range(1, len(batches) + 1):
        joined("full", batches[:end], watermarks, store)
        again = joined("full", batches[:end], watermarks, store)
        assert again == expected("full", batches[:end], watermarks[: end + 1])


def test_rows_are_kept_until_nothing_can_match_them_any_more(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, 0)
    rows: list[Row] = [(0, "a", 10), (1, "a", 10)]
    joined("inner", [rows], [0, 10 + BEFORE], store)
    assert [len(side) for side in store.read(1).sides] == [1, 1]
    joined("inner", [rows, [], []], [0, 10 + BEFORE, 10 + BEFORE, 11 + BEFORE], store)
    assert [len(side) for side in store.read(3).sides] == [1, 0]


def test_a_match_counts_though_its_row_is_over_at_once(tmp_path: Path) -> None:
    """The right row at 8 is not late, but nothing later than 11 can match it, and time is at 12 already."""
    batches: list[list[Row]] = [[(0, "a", 10)], [(1, "a", 8)], []]
    assert joined("left", batches, [0, 0, 12, 100], SegmentStore(tmp_path, 0)) == [("a", 0, 1)]


def test_segments_of_two_keys_with_one_code_are_apart() -> None:
    rows = table([(0, key, at) for at, key in enumerate("abaacbd", 1)])
    made = make_segments(rows, ["key"], np.arange(7) % 2 == 0)
    kinds = [set(segment.rows["key"].to_pylist()) for segment in made]
    assert kinds == [{"a", "c"}, {"b", "d"}]
    for segment in made:
        pairs = list(zip(segment.codes.tolist(), segment.rows["key"].to_pylist(), strict=True))
        assert all(one == other for one, other in pairwise(pairs) if one[0] == other[0])
        assert (segment.matched == (np.asarray(segment.rows["left"]) % 2 == 0)).all()


def test_what_is_merged_loses_what_is_over() -> None:
    parts = [make_segments(table([(0, "a", at), (0, "d", at + 1)]), ["key"])[0] for at in range(segments.FAN)]
    (merged,) = merge_segments(parts, ["key"], over_us=3 * MS)
    assert (merged.first_us, len(merged)) == (4 * MS, 2 * segments.FAN - 7)
    assert merge_segments(parts[1:], ["key"], over_us=3 * MS) == parts[1:]


def test_a_segment_that_was_torn_is_an_error(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, 0)
    joined("inner", [[(0, "a", 10)]], [0, 0], store)
    (segment,) = (tmp_path / "0").glob("*.segment")
    segment.write_bytes(segment.read_bytes()[:100])
    with pytest.raises(BadState, match="not as it was written"):
        store.read(1)


def test_nothing_is_written_when_nothing_changes(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, 0)
    joined("full", [[(0, "a", 10)]], [0, 0], store)
    kept = store.read(1)
    made = kernel("full")(table([(1, None, 20)]), kept, Times(5 * MS, 9 * MS))
    assert (made.kept, [output.to_pylist() for output in made.output]) == (
        None,
        [[{"key": None, "left": None, "right": 0}]],
    )
