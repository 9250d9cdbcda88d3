"""One segment: batches in a file, walked and located by sparse indexes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.folders import replace_file
from headrace.protocol.batch import place_batch, read_header
from headrace.storage.segment import FilePool, LogFile, LogSegment, walk
from tests.storage.batches import NOW, batch, filler

INTERVAL = 200
ROOT = Path(__file__).parents[2]


def new_segment(folder, base_offset=0):
    segment = LogSegment(folder, base_offset, FilePool())
    segment.activate()
    return segment


def write(segment, offset, sent, interval_bytes=INTERVAL):
    place_batch(sent, offset, 0)
    header = read_header(sent)
    position = segment.append(sent)
    segment.index_batch(header, position, header.last_offset, interval_bytes)
    return header.next_offset


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(0, 300)), min_size=1, max_size=20)
)
@settings(max_examples=30, deadline=None)
def test_every_offset_is_located_in_its_batch_or_the_next(tmp_path_factory, batches):
    segment = new_segment(tmp_path_factory.mktemp("segment"), 100)
    offset, spans = 100, []
    for count, gap, size in batches:
        offset += gap  # as compaction leaves them
        end = write(segment, offset, batch(*[b"v" * size] * count))
        spans.append((offset, end))
        offset = end
    for wanted in range(100, offset + 1):
        expected = next((span for span in spans if wanted < span[1]), None)
        step = segment.locate(wanted)
        assert (None if step is None else (step.base_offset, step.last_offset + 1)) == expected


@pytest.mark.parametrize("chunk_bytes", [61, 100, 175, 8192])
def test_a_walk_meets_every_batch_whatever_it_reads_at_once(tmp_path, chunk_bytes):
    segment = new_segment(tmp_path)
    for number in range(10):
        write(segment, number, filler(number))
    steps = list(walk(segment.file, 0, segment.size, chunk_bytes))
    assert [step.base_offset for step in steps] == list(range(10))


def test_a_walk_stops_at_a_batch_that_is_not_all_there(tmp_path):
    segment = new_segment(tmp_path)
    for number in range(3):
        write(segment, number, filler(number))
    assert len(list(walk(segment.file, 0, segment.size - 1))) == 2


def test_indexes_are_sparse_and_name_the_last_offset_of_a_batch(tmp_path):
    segment = new_segment(tmp_path)
    offset = 0
    for number in range(6):
        offset = write(segment, offset, batch(b"." * 50, b"." * 50, time_ms=NOW + number))
    size = segment.size // 6
    assert list(zip(segment.offset_index.offsets, segment.offset_index.positions, strict=True)) == [
        (5, 2 * size),
        (9, 4 * size),
    ]
    assert list(zip(segment.time_index.times, segment.time_index.offsets, strict=True)) == [
        (NOW + 2, 5),
        (NOW + 4, 9),
    ]


def test_a_closed_segment_ends_its_time_index_with_its_largest_time(tmp_path):
    segment = new_segment(tmp_path)
    for number in range(3):
        write(segment, number, filler(number))
    segment.save_indexes()
    segment.close()
    loaded = LogSegment(tmp_path, 0, FilePool())
    assert loaded.load_max_timestamp() == NOW + 2
    assert loaded.max_timestamp_offset == 2


def test_a_segment_whose_records_have_no_times_is_as_old_as_its_file(tmp_path):
    segment = new_segment(tmp_path)
    write(segment, 0, batch(b"v", time_ms=-1))
    os.utime(segment.path, (NOW / 1000, NOW / 1000))
    assert segment.load_max_timestamp() == -1
    assert segment.load_age_ms() == NOW


def test_a_held_segment_reads_on_while_another_file_takes_its_name(tmp_path):
    segment = new_segment(tmp_path)
    write(segment, 0, batch(b"old"))
    segment.save_indexes()
    segment.close()
    segment.hold()
    before = segment.read(0, segment.size)
    replace_file(segment.path, b"new")
    assert segment.read(0, segment.size) == before


def test_a_pool_closes_the_files_that_were_read_longest_ago(tmp_path):
    pool = FilePool(limit=2)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(path.name.encode())
    first = pool.open(paths[0])
    pool.open(paths[1])
    assert pool.open(paths[0]) is first
    second = pool.open(paths[1]).fd
    pool.open(paths[2])
    assert os.pread(first.fd, 1, 0) == b"a", "a file must stay open while it is held"
    assert pool.open(paths[1]).fd == second
    assert pool.open(paths[0]) is not first


def test_a_file_that_cannot_be_opened_leaves_nothing_to_close(tmp_path):
    with pytest.raises(FileNotFoundError):
        LogFile(tmp_path / "missing")


def test_a_replaced_file_is_whole_whatever_an_earlier_attempt_left(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    (tmp_path / "file.tmp").write_bytes(b"torn and longer than what comes")
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


FULL_DISK = """
import resource, sys
from pathlib import Path
from tests.storage.batches import batch
from tests.storage.test_segment import new_segment, write
from headrace.storage.errors import DiskError

segment = new_segment(Path(sys.argv[1]))
write(segment, 0, batch(b"a" * 100))
size = segment.size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, resource.RLIM_INFINITY))
try:
    write(segment, 1, batch(b"b" * 100))
except DiskError as fault:
    print(fault)
assert segment.path.stat().st_size == segment.size == size
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
write(segment, 1, batch(b"c" * 100))
assert [step.base_offset for step in map(segment.locate, (0, 1))] == [0, 1]
"""


def test_a_write_that_does_not_fit_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")  # this module needs Hypothesis
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "could not be written" in done.stdout
    assert "free disk space" in done.stdout
