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

from headrace.columns.joining import From, JoinKernel
from headrace.columns.keyed import Times
from headrace.columns.segments import make_segments
from headrace.state import joins, runs, versions
from headrace.state.files import BadState, LocalStateFiles
from headrace.state.joins import ROWS, JoinOperatorState
from headrace.state.versions import Manifest, Versions

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


@pytest.fixture(autouse=True)
def codes_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the codes of `table`, some of which are those of two keys."""
    monkeypatch.setattr(joins, "row_hashes", lambda rows, *_: rows["code"].fill_null(0).to_numpy())


def joined(how: str, batches: Sequence[Sequence[Row]], watermarks: Sequence[int], folder: Path) -> list[Pair]:
    """What comes of some batches; each continues from the state of the one before."""
    found, number = [], 0
    for batch, rows in enumerate(batches):
        late, now = watermarks[batch], watermarks[batch + 1]
        state = JoinOperatorState(files=LocalStateFiles(folder), kernel=kernel(how))
        for output in state.advance(batch, table(rows, number), Times(late * MS, now * MS)):
            found += [(row["key"], row["left"], row["right"]) for row in output.to_pylist()]
        number += len(rows)
    return sorted(found, key=str)


def kept(folder: Path, version: int) -> Manifest:
    return Versions(LocalStateFiles(folder)).read(version)


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


ROW = st.tuples(
    st.integers(0, 1), st.sampled_from([None, *"abbbd"]), st.one_of(st.none(), st.integers(1, 40))
)
BATCHES = st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=6)


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
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "FAN", 2)
        patch.setattr(versions, "SMALLEST", 2)
        patch.setattr(runs, "CHUNK_ROWS", 4)
        assert joined(how, batches, watermarks, folder) == expected(how, batches, watermarks)


@pytest.mark.parametrize("how", KEEPS)
def test_many_batches_leave_few_segments_and_the_same_rows(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "SMALLEST", 4)
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
    assert joined(how, batches, watermarks, tmp_path) == expected(how, batches, watermarks)
    assert all(len(listed) < 3 * versions.FAN for listed in kept(tmp_path, len(batches) - 1).runs.values())
    assert len(list(tmp_path.iterdir())) < 24 * versions.FAN


def test_a_repeated_batch_finds_what_it_found_before(tmp_path: Path) -> None:
    batches: list[list[Row]] = [[(0, "a", 5)], [(1, "a", 6)], [(1, "a", 7), (0, "a", 9)]]
    watermarks = [0, 0, 4, 50]
    for end in range(1, len(batches) + 1):
        joined("full", batches[:end], watermarks, tmp_path)
        again = joined("full", batches[:end], watermarks, tmp_path)
        assert again == expected("full", batches[:end], watermarks[: end + 1])


def test_rows_are_kept_until_nothing_can_match_them_any_more(tmp_path: Path) -> None:
    rows: list[Row] = [(0, "a", 10), (1, "a", 10)]
    joined("inner", [rows], [0, 10 + BEFORE], tmp_path)
    assert [sum(run.rows for run in kept(tmp_path, 0).runs[name]) for name in ROWS] == [1, 1]
    joined("inner", [rows, [], []], [0, 10 + BEFORE, 10 + BEFORE, 11 + BEFORE], tmp_path)
    assert [sum(run.rows for run in kept(tmp_path, 2).runs[name]) for name in ROWS] == [1, 0]


def test_a_match_counts_though_its_row_is_over_at_once(tmp_path: Path) -> None:
    """The right row at 8 is not late, but nothing later than 11 can match it, and time is at 12 already."""
    batches: list[list[Row]] = [[(0, "a", 10)], [(1, "a", 8)], []]
    assert joined("left", batches, [0, 0, 12, 100], tmp_path) == [("a", 0, 1)]


def test_segments_of_two_keys_with_one_code_are_apart() -> None:
    made = make_segments(table([(0, key, at) for at, key in enumerate("abaacbd", 1)]), ["key"])
    kinds = [set(segment.rows["key"].to_pylist()) for segment in made]
    assert kinds == [{"a", "c"}, {"b", "d"}]
    for segment in made:
        pairs = list(zip(segment.codes.tolist(), segment.rows["key"].to_pylist(), strict=True))
        assert all(one == other for one, other in pairwise(pairs) if one[0] == other[0])


def test_what_is_merged_loses_what_is_over(tmp_path: Path) -> None:
    batches: list[list[Row]] = [[(0, "a", 10 * at), (0, "d", 10 * at + 1)] for at in range(1, 10)]
    joined("inner", [*batches, [(0, "a", 100 + n) for n in range(60)]], [0] * 9 + [50, 50], tmp_path)
    (merged,) = kept(tmp_path, 9).runs["left"]
    assert min(chunk.first_expires for chunk in merged.chunks) > (50 - AFTER - 1) * MS


def test_a_run_that_was_torn_is_an_error(tmp_path: Path) -> None:
    joined("inner", [[(0, "a", 10)]], [0, 0], tmp_path)
    (run,) = tmp_path.glob("*.arrow")
    run.write_bytes(run.read_bytes()[:100])
    with pytest.raises(BadState, match=f"{run.name} is not as it was written"):
        JoinOperatorState(files=LocalStateFiles(tmp_path), kernel=kernel("inner")).advance(
            1, table([]), Times(0, 0)
        )


def test_no_run_is_written_when_nothing_changes(tmp_path: Path) -> None:
    joined("full", [[(0, "a", 10)]], [0, 0], tmp_path)
    before = kept(tmp_path, 0).names
    state = JoinOperatorState(files=LocalStateFiles(tmp_path), kernel=kernel("full"))
    output = state.advance(1, table([(1, None, 20)]), Times(5 * MS, 9 * MS))
    assert [rows.to_pylist() for rows in output] == [[{"key": None, "left": None, "right": 0}]]
    assert kept(tmp_path, 1).names == before


def test_a_row_that_is_matched_again_and_again_is_noted_once(tmp_path: Path) -> None:
    batches: list[list[Row]] = [[(0, "a", 10)], [(1, "a", 11)], [(1, "a", 12)], [(1, "a", 13)], []]
    assert joined("left", batches, [0, 0, 0, 0, 0, 99], tmp_path) == [("a", 0, n) for n in (1, 2, 3)]
    joined("left", batches[:4], [0] * 5, tmp_path)
    assert sum(run.rows for run in kept(tmp_path, 3).runs["left matches"]) == 1
