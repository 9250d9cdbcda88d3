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
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pytest

from headrace.files import LocalFolder
from headrace.sinks.sink import SinkContext

if TYPE_CHECKING:
    from collections.abc import Iterator
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
            target.write(0, rows(("tea", 1.0), ("cup", 2.5)))
            assert target.last_batch() == 0
            target.write(3, rows(("pot", 4.0)))  # batches without rows are skipped
        with self._opened() as target:
            assert target.last_batch() == 3
        assert self._held() == [("cup", 2.5), ("pot", 4.0), ("tea", 1.0)]

    def test_a_repeated_batch_is_written_once(self) -> None:
        """A process that repeats a batch does not duplicate rows."""
        for _ in range(2):
            with self._opened() as target:
                if target.last_batch() is None:
                    target.write(0, rows(("tea", 1.0), ("cup", 2.0)))
        assert self._held() == [("cup", 2.0), ("tea", 1.0)]

    def test_the_last_row_of_a_key_counts(self) -> None:
        """Within a batch and across batches."""
        with self._opened() as target:
            target.write(0, rows(("tea", 1.0), ("cup", 2.0), ("tea", 3.0)))
            target.write(1, rows(("cup", 4.0)))
        newest = [("cup", 4.0), ("tea", 3.0)]
        every = [("cup", 2.0), ("cup", 4.0), ("tea", 1.0), ("tea", 3.0)]
        assert self._held() == (newest if self.replaces else every)

    def test_deleted_rows_are_removed(self) -> None:
        """If the sink deletes; missing rows may be deleted too."""
        if not self.deletes:
            return
        with self._opened(schema=WITH_DELETED) as target:
            target.write(0, rows(("tea", 1.0, False), ("cup", 2.0, None)))
            target.write(1, rows(("tea", None, True), ("pot", None, True), ("mug", 1.0, False)))
        assert self._held() == [("cup", 2.0), ("mug", 1.0)]

    def test_a_new_generation_starts_over(self) -> None:
        """After a reset, batches start at 0 again and are written."""
        with self._opened() as target:
            target.write(7, rows(("tea", 1.0)))
        with self._opened(generation=2) as target:
            assert target.last_batch() is None
            target.write(0, rows(("cup", 2.0)))
            assert target.last_batch() == 0
        assert self._held() == [("cup", 2.0), ("tea", 1.0)]

    def test_jobs_have_separate_markers(self) -> None:
        """Two jobs that write one target have separate batches."""
        with self._opened() as one, self._opened(job="shop.other") as other:
            one.write(7, rows(("tea", 1.0)))
            assert other.last_batch() is None
            other.write(0, rows(("cup", 2.0)))
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
            target.write(newest + 1, rows(*_batch(newest + 1)))
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
                    target.write(batch, rows(*_batch(batch)))
                    connection.send(batch)
        except BaseException:  # noqa: BLE001  the child exits here
            traceback.print_exc()
        finally:
            os._exit(1)

    @contextmanager
    def _opened(
        self, *, job: str = "shop.revenue", generation: int = 1, schema: pa.Schema = SCHEMA
    ) -> Iterator[SinkWriter]:
        context = SinkContext(
            job=job,
            generation=generation,
            schema=schema,
            folder=LocalFolder(self.folder / "outputs" / f"{job}-{generation}"),
            state=self.folder,
        )
        with closing(self.sink().open(context)) as target:
            yield target

    def _held(self) -> list[tuple[str, float]]:
        return sorted((row["product"], row["revenue"]) for row in self.read())


def rows(*given: tuple[Any, ...]) -> pa.Table:
    """A table of rows: product, revenue and, if there is a third value, `_deleted`."""
    schema = WITH_DELETED if len(given[0]) == 3 else SCHEMA
    columns = [list(column) for column in zip(*given, strict=True)]
    return pa.table(columns, schema=schema)


def _batch(number: int) -> list[tuple[str, float]]:
    """The rows of a batch in the kill test, each with its own key."""
    return [(f"product {number:05}-{row:05}", float(number)) for row in range(ROWS_OF_A_BATCH)]
