"""The contract of sinks as tests: subclass `SinkContract`, and pytest runs them.

```python
class TestMySink(SinkContract):
    def sink(self) -> Sink:
        return MySink(...)

    def read(self) -> list[dict[str, Any]]:
        return ...  # the contents of the target, as rows
```

The rows have the columns `product` (the key) and `revenue`. Each test starts with an empty target:
`self.folder` is a new folder for each test, and your own fixtures can create more.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
import warnings
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pytest

from headrace.folders import LocalFolder
from headrace.sinks.sink import SinkContext, StagingContext, TaskStaging
from headrace.sinks.staging import TOKENS, RowStaging, StagedBatch, read_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from headrace.sinks.sink import Sink, SinkWriter

SCHEMA: Final = pa.schema([("product", pa.string()), ("revenue", pa.float64())])
WITH_DELETED: Final = SCHEMA.append(pa.field("_deleted", pa.bool_()))
ROWS_OF_A_BATCH: Final = 200
WRITTEN_BEFORE_A_KILL: Final = 5


class SinkContract:
    """Tests that a sink with exactly-once writes passes."""

    replaces: ClassVar[bool] = True
    """Whether a row replaces the row with its `product`; otherwise all rows are kept."""
    deletes: ClassVar[bool] = False
    """Whether a row with `_deleted` deletes its `product`."""
    is_atomic: ClassVar[bool] = True
    """Whether a batch is written atomically and once, even if the writer is killed."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _own_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def sink(self) -> Sink:
        """The sink, as a user declares it; the same target each time in one test."""
        raise NotImplementedError

    def read(self) -> list[dict[str, Any]]:
        """The contents of the target: `product` and `revenue` of each row, in any order."""
        raise NotImplementedError

    def test_a_target_has_the_written_rows_and_the_last_batch(self) -> None:
        """The last batch is known to a new connection too."""
        with self._opened() as target:
            assert target.last_batch() is None
            target.commit(0, StagedBatch.of(rows(("tea", 1.0), ("cup", 2.5))))
            assert target.last_batch() == 0
            target.commit(3, StagedBatch.of(rows(("pot", 4.0))))  # batches without rows are skipped
        with self._opened() as target:
            assert target.last_batch() == 3
        assert self._held() == [("cup", 2.5), ("pot", 4.0), ("tea", 1.0)]

    def test_a_repeated_batch_is_written_once(self) -> None:
        """A process that repeats a batch does not duplicate rows."""
        for _ in range(2):
            with self._opened() as target:
                if target.last_batch() is None:
                    target.commit(0, StagedBatch.of(rows(("tea", 1.0), ("cup", 2.0))))
        assert self._held() == [("cup", 2.0), ("tea", 1.0)]

    def test_the_last_row_of_a_key_counts(self) -> None:
        """Within a batch and across batches."""
        with self._opened() as target:
            target.commit(0, StagedBatch.of(rows(("tea", 1.0), ("cup", 2.0), ("tea", 3.0))))
            target.commit(1, StagedBatch.of(rows(("cup", 4.0))))
        newest = [("cup", 4.0), ("tea", 3.0)]
        every = [("cup", 2.0), ("cup", 4.0), ("tea", 1.0), ("tea", 3.0)]
        assert self._held() == (newest if self.replaces else every)

    def test_the_rows_of_all_tasks_are_one_batch(self) -> None:
        """Parts that tasks prepare in the target, and rows of small tasks, in the order of the tasks."""
        with self._opened() as target:
            small = rows(("tea", 3.0))
            first, second = rows(("tea", 1.0), ("cup", 2.0)), rows(("tea", 4.0), ("pot", 5.0))
            target.commit(0, self._staged(first, small, second, small_tasks=(1,)))
            assert target.last_batch() == 0
        newest = [("cup", 2.0), ("pot", 5.0), ("tea", 4.0)]
        every = [("cup", 2.0), ("pot", 5.0), ("tea", 1.0), ("tea", 3.0), ("tea", 4.0)]
        assert self._held() == (newest if self.replaces else every)

    def test_rows_that_are_staged_and_not_committed_are_not_there(self) -> None:
        """A task that is killed, or repeated, leaves no rows."""
        with self._opened() as target:
            target.commit(0, StagedBatch.of(rows(("cup", 2.0))))
            self._staged(rows(("tea", 1.0)))
            assert self._held() == [("cup", 2.0)]
            target.commit(1, self._staged(rows(("tea", 1.0))))
        assert self._held() == [("cup", 2.0), ("tea", 1.0)]
        sink = self.sink()
        if isinstance(sink, TaskStaging):
            sink.discard(self._context(), keep=())
        assert self._held() == [("cup", 2.0), ("tea", 1.0)]

    def test_deleted_rows_are_removed(self) -> None:
        """If the sink deletes; missing rows may be deleted too."""
        if not self.deletes:
            return
        with self._opened(schema=WITH_DELETED) as target:
            target.commit(0, StagedBatch.of(rows(("tea", 1.0, False), ("cup", 2.0, None))))
            target.commit(
                1, StagedBatch.of(rows(("tea", None, True), ("pot", None, True), ("mug", 1.0, False)))
            )
        assert self._held() == [("cup", 2.0), ("mug", 1.0)]

    def test_a_new_generation_starts_over(self) -> None:
        """After a reset, batches start at 0 again and are written."""
        with self._opened() as target:
            target.commit(7, StagedBatch.of(rows(("tea", 1.0))))
        with self._opened(generation=2) as target:
            assert target.last_batch() is None
            target.commit(0, StagedBatch.of(rows(("cup", 2.0))))
            assert target.last_batch() == 0
        assert self._held() == [("cup", 2.0), ("tea", 1.0)]

    def test_jobs_have_separate_markers(self) -> None:
        """Two jobs that write one target have separate batches."""
        with self._opened() as one, self._opened(job="shop.other") as other:
            one.commit(7, StagedBatch.of(rows(("tea", 1.0))))
            assert other.last_batch() is None
            other.commit(0, StagedBatch.of(rows(("cup", 2.0))))
            assert (one.last_batch(), other.last_batch()) == (7, 0)

    def test_a_killed_writer_leaves_complete_batches(self) -> None:
        """The target has all rows up to the last batch, and none after it."""
        if not self.is_atomic:
            return
        written = self._write_until_killed()
        with self._opened() as target:
            newest = target.last_batch()
            assert newest is not None
            assert written <= newest
            assert self._held() == sorted(row for n in range(newest + 1) for row in _batch(n))
            target.commit(newest + 1, StagedBatch.of(rows(*_batch(newest + 1))))
        assert len(self._held()) == (newest + 2) * ROWS_OF_A_BATCH

    def _write_until_killed(self) -> int:
        """Let another process write batches, and kill it; returns the last batch that it reported."""
        reader, writer = multiprocessing.Pipe(duplex=False)
        with warnings.catch_warnings():
            # About threads, which the child does not use.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            self._write_forever(writer)
        writer.close()
        reported = [reader.recv() for _ in range(WRITTEN_BEFORE_A_KILL)]
        os.kill(child, 9)
        os.waitpid(child, 0)
        reader.close()
        return int(reported[-1])

    def _write_forever(self, connection: Any) -> None:
        try:
            with self._opened() as target:
                for batch in range(1_000_000):
                    target.commit(batch, self._staged(rows(*_batch(batch))))
                    connection.send(batch)
        except BaseException:  # noqa: BLE001  the child exits here
            traceback.print_exc()
        finally:
            os._exit(1)

    @contextmanager
    def _opened(
        self, *, job: str = "shop.revenue", generation: int = 1, schema: pa.Schema = SCHEMA
    ) -> Iterator[SinkWriter]:
        with closing(
            self.sink().open(self._context(job=job, generation=generation, schema=schema))
        ) as target:
            yield target

    def _context(
        self, *, job: str = "shop.revenue", generation: int = 1, schema: pa.Schema = SCHEMA
    ) -> SinkContext:
        return SinkContext(
            job=job,
            generation=generation,
            schema=schema,
            folder=LocalFolder(self.folder / "outputs" / f"{job}-{generation}"),
            state=self.folder,
        )

    def _staged(self, *tasks: pa.Table, small_tasks: Sequence[int] = ()) -> StagedBatch:
        return stage(self.sink(), self._context(), self.folder / "staged", *tasks, small_tasks=small_tasks)

    def _held(self) -> list[tuple[str, float]]:
        return sorted((row["product"], row["revenue"]) for row in self.read())


def stage(
    sink: Sink, context: SinkContext, folder: Path, *tasks: pa.Table, small_tasks: Sequence[int] = ()
) -> StagedBatch:
    """The rows of tasks, staged as in a job; those of `small_tasks` are passed to the driver as they are."""
    staging = StagingContext(job=context.job, generation=context.generation, schema=context.schema)
    tokens = [
        token
        for number, table in enumerate(tasks)
        for token in RowStaging.of(
            (sink,), staging, inline_bytes=1 << 20 if number in small_tasks else 0
        ).stage(table.to_batches(), task=number, folder=str(folder))
    ]
    return replace(read_tokens(pa.Table.from_batches(tokens, TOKENS), context.schema), sink=sink.name)


def rows(*given: tuple[Any, ...]) -> pa.Table:
    """A table of rows: product, revenue and, if there is a third value, `_deleted`."""
    schema = WITH_DELETED if len(given[0]) == 3 else SCHEMA
    columns = [list(column) for column in zip(*given, strict=True)]
    return pa.table(columns, schema=schema)


def _batch(number: int) -> list[tuple[str, float]]:
    """The rows of a batch in the kill test, each with its own key."""
    return [(f"product {number:05}-{row:05}", float(number)) for row in range(ROWS_OF_A_BATCH)]
