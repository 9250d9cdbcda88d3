"""A partition with tiered storage behaves like one without, also with faults and restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.storage.errors import ArchiveError
from tests.storage.archives import FOLDER, FaultyStore, Killed, archive_closed, cache_of, folder_archive
from tests.storage.batches import (
    NOW,
    Writer,
    batch,
    downloaded,
    find_latest_time,
    find_time,
    open_log,
    read_records,
    reopen,
)

TIMES = st.integers(0, 30).map(lambda delta: NOW + delta)
append = st.tuples(st.just("append"), TIMES, st.integers(0, 200))
transactional = st.tuples(st.just("transactional"), st.integers(1, 2), TIMES)
marker = st.tuples(st.just("marker"), st.integers(1, 2), st.booleans())
delete = st.tuples(st.just("delete"), st.floats(0, 1))
roll = st.tuples(st.just("roll"))
archive = st.tuples(st.just("archive"))
drop_local = st.tuples(st.just("drop_local"))
restart = st.tuples(st.just("restart"), st.booleans())
fault = st.tuples(st.just("fault"), st.integers(0, 8), st.booleans(), st.booleans())
lose_indexes = st.tuples(st.just("lose_indexes"))
steps = st.lists(
    st.one_of(
        append, append, append, transactional, marker, delete, roll, archive, archive, drop_local, restart,
        fault, lose_indexes,
    ),
    min_size=5,
    max_size=40,
)  # fmt: skip


class Pair:
    """The same log twice: on the local disk alone, and with an archive."""

    def __init__(self, folder: Path) -> None:
        self.store = FaultyStore(folder_archive(folder / "archive"))
        cache = cache_of(self.store, folder / "cache", limit_bytes=1500)
        self.plain = open_log(folder / "plain", segment_bytes=1024)
        self.tiered = open_log(
            folder / "tiered",
            segment_bytes=1024,
            remote_storage_enable=True,
            local_retention_bytes=0,
            remote_cache=cache,
        )
        self._sequences: dict[int, int] = {}

    def do(self, step: tuple[Any, ...]) -> None:
        getattr(self, f"_{step[0]}")(*step[1:])

    def _both(self, call: Any) -> None:
        outcomes = []
        for log in (self.plain, self.tiered):
            try:
                outcomes.append(call(log))
            except HeadraceError as refusal:
                outcomes.append((type(refusal), str(refusal)))
        assert outcomes[0] == outcomes[1]

    def _append(self, time_ms: int, size: int) -> None:
        self._both(lambda log: log.append(batch(b"." * size, time_ms=time_ms), NOW))

    def _transactional(self, producer_id: int, time_ms: int) -> None:
        sequence = self._sequences.get(producer_id, 0)
        writer = Writer(producer_id, sequence, transactional=True)
        self._both(lambda log: log.append(batch(b"in", writer=writer, time_ms=time_ms), NOW))
        self._sequences[producer_id] = sequence + 1

    def _marker(self, producer_id: int, committed: bool) -> None:
        self._both(lambda log: log.append_marker(producer_id, 0, committed=committed, now_ms=NOW))

    def _delete(self, share: float) -> None:
        start, end = self.plain.start_offset, self.plain.high_watermark
        self._both(lambda log: log.move_start(start + round((end - start) * share)))

    def _roll(self) -> None:
        self._both(lambda log: log.roll().base_offset)

    def _archive(self) -> None:
        try:
            archive_closed(self.tiered, self.store)
        except Killed:
            self.tiered = reopen(self.tiered)
        except ArchiveError:
            pass  # tried again by the next step that archives

    def _drop_local(self) -> None:
        self.tiered.apply_retention(NOW)

    def _restart(self, clean: bool) -> None:
        self.plain, self.tiered = reopen(self.plain, clean=clean), reopen(self.tiered, clean=clean)

    def _fault(self, calls: int, kills: bool, after_effect: bool) -> None:
        self.store.fail_in(calls, Killed() if kills else ArchiveError("injected"), after_effect=after_effect)

    def _lose_indexes(self) -> None:
        for segment in self.tiered.segments[:-1]:
            segment.path.with_suffix(".index").write_bytes(b"")
            segment.path.with_suffix(".timeindex").unlink(missing_ok=True)

    def check(self) -> None:
        """What readers get is the same; what is in the archive is accounted for."""
        self.store.fails_at = None
        plain, tiered = (self._answers(log) for log in (self.plain, self.tiered))
        assert tiered == plain

    def _answers(self, log: Any) -> dict[str, object]:
        offsets = range(log.start_offset, log.end_offset)
        return {
            "offsets": (log.start_offset, log.last_stable_offset, log.high_watermark, log.end_offset),
            "records": read_records(log),
            "committed": read_records(log, committed=True, max_bytes=200),
            "from": [[record.offset for record in read_records(log, offset)] for offset in offsets[::7]],
            "times": [find_time(log, NOW + delta) for delta in range(-1, 32, 3)],
            "latest": find_latest_time(log),
            "size": [downloaded(lambda o=offset: log.size_from(o)) for offset in offsets[::5]],
            "producers": list(log.producers.describe()),
        }

    def check_nothing_leaks(self) -> None:
        """After all records are deleted the archive is empty."""
        self.tiered.move_start(self.tiered.high_watermark)
        archive_closed(self.tiered, self.store)
        self.tiered.trim()
        archive_closed(self.tiered, self.store)
        known = {f"{segment.base_offset:020d}" for segment in self.tiered.segments if segment.manifest}
        assert {name.rsplit("/", 1)[1][:20] for name in self.store.store.list(FOLDER)} <= known


@settings(max_examples=60)
@given(steps)
def test_a_tiered_partition_behaves_like_a_local_one(taken: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder))
        for step in taken:
            pair.do(step)
        pair.check()
        pair.check_nothing_leaks()
