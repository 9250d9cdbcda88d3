"""A log on disk and one in memory return the same results for the same calls."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.storage.config import MEMORY_BYTES, TopicConfig
from headrace.storage.memory_log import MemoryLog
from tests.storage.batches import NOW, Writer, batch, find_latest_time, find_time, open_log, read_records

if TYPE_CHECKING:
    from headrace.storage.log import Log

PRODUCERS = st.integers(1, 3)
TIMES = st.integers(0, 50).map(lambda delta: NOW + delta)

plain = st.tuples(st.just("plain"), st.lists(TIMES, min_size=1, max_size=3), st.integers(0, 120))
transactional = st.tuples(st.just("transactional"), PRODUCERS, TIMES)
marker = st.tuples(st.just("marker"), PRODUCERS, st.booleans())
delete = st.tuples(st.just("delete"), st.floats(0, 1))
steps = st.lists(st.one_of(plain, plain, transactional, marker, delete), min_size=1, max_size=40)


class Twin:
    """One log, and the sequences of the producers that write to it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._sequences: dict[int, int] = {}

    def do(self, step: tuple[Any, ...]) -> object:
        """The outcome of a step: what the log answered, or how it refused."""
        try:
            return getattr(self, f"_{step[0]}")(*step[1:])
        except HeadraceError as fault:
            return type(fault), str(fault)

    def _plain(self, times: list[int], size: int) -> object:
        return self.log.append(batch(*[b"." * size] * len(times), time_ms=tuple(times)), NOW)

    def _transactional(self, producer_id: int, time_ms: int) -> object:
        sequence = self._sequences.get(producer_id, 0)
        writer = Writer(producer_id, sequence, transactional=True)
        appended = self.log.append(batch(b"in", writer=writer, time_ms=time_ms), NOW)
        self._sequences[producer_id] = sequence + 1
        return appended

    def _marker(self, producer_id: int, committed: bool) -> object:
        return self.log.append_marker(producer_id, 0, committed=committed, now_ms=NOW)

    def _delete(self, share: float) -> object:
        log = self.log
        log.move_start(log.start_offset + round((log.high_watermark - log.start_offset) * share))
        return log.start_offset

    def answers(self) -> dict[str, object]:
        """Everything that a reader can ask."""
        log = self.log
        offsets = range(log.start_offset, log.end_offset + 1)
        return {
            "offsets": (log.start_offset, log.last_stable_offset, log.high_watermark, log.end_offset),
            "records": read_records(log),
            "committed": read_records(log, committed=True, max_bytes=200),
            "aborted": log.aborted.between(log.start_offset, log.end_offset),
            "times": [find_time(log, NOW + delta) for delta in range(-1, 52)],
            "latest": find_latest_time(log),
            "bytes": [log.size_from(offset) for offset in offsets],
            "next": [log.next_batch(offset) for offset in offsets],
            "within": [log.offset_within(size) for size in range(0, log.size_from(log.start_offset), 50)],
            "producers": list(log.producers.describe()),
        }


def compare(story: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-twins-") as folder:
        disk = Twin(open_log(Path(folder), segment_bytes=1024, index_interval_bytes=300))
        memory = Twin(MemoryLog(TopicConfig(headrace_storage="memory", retention_bytes=MEMORY_BYTES)))
        for step in story:
            assert disk.do(step) == memory.do(step)
        assert disk.answers() == memory.answers()


@given(steps)
@settings(max_examples=100)
def test_both_logs_give_the_same_answers(story: list[tuple[Any, ...]]) -> None:
    compare(story)


@pytest.mark.soak
@given(steps)
@settings(max_examples=5_000)
def test_both_logs_give_the_same_answers_for_long(story: list[tuple[Any, ...]]) -> None:
    compare(story)
