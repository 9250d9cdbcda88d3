"""What every sink has to do, as tests: make a class of one's own from `SinkContract`, and pytest runs them.

```python
class TestMySink(SinkContract):
    def sink(self) -> Sink:
        return MySink(...)

    def read(self) -> list[dict[str, Any]]:
        return ...  # what the target holds, as rows
```

The rows have the columns `product` (the key) and `revenue`. Each test begins with an empty target:
`self.folder` is a new folder for each, and a fixture of one's own can make more.
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

from headrace.folders import LocalFolder
from headrace.sinks.sink import Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.sinks.sink import Sink, Target

SCHEMA: Final = pa.schema([("product", pa.string()), ("revenue", pa.float64())])
WITH_DELETED: Final = SCHEMA.append(pa.field("_deleted", pa.bool_()))
ROWS_OF_A_BATCH: Final = 200
WRITTEN_BEFORE_A_KILL: Final = 5


class SinkContract:
    """Tests that a sink passes whose rows arrive exactly once."""

    replaces: ClassVar[bool] = True
    """Whether a row takes the place of the one with its `product`; otherwise all are kept."""
    deletes: ClassVar[bool] = False
    """Whether a row with `_deleted` deletes its `product`."""
    is_atomic: ClassVar[bool] = True
    """Whether a batch is there as a whole or not at all, and once, even when the writer is killed."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _own_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def sink(self) -> Sink:
        """The sink, as a user declares it; the same target each time in one test."""
        raise NotImplementedError

    def read(self) -> list[dict[str, Any]]:
        """What the target holds: `product` and `revenue` of each row, in any order."""
        raise NotImplementedError

    def test_a_target_holds_what_was_written_and_says_which_batch(self) -> None:
        """Rows come in batches, and the newest of them is told, by a new connection too."""
        with self._opened() as target:
            assert target.newest() is None
            target.write(0, rows(("tea", 1.0), ("cup", 2.5)))
            assert target.newest() == 0
            target.write(3, rows(("pot", 4.0)))  # batches without rows are left out
        with self._opened() as target:
            assert target.newest() == 3
        assert self._held() == [("cup", 2.5), ("pot", 4.0), ("tea", 1.0)]

    def test_a_batch_that_comes_again_is_not_written_twice(self) -> None:
        """A process that does not know that the batch is there can do no harm."""
        for _ in range(2):
            with self._opened() as target:
                if target.newest() is None:
                    target.write(0, rows(("tea", 1.0), ("cup", 2.0)))
        assert self._held() == [("cup", 2.0), ("tea", 1.0)]

    def test_of_several_rows_with_one_key_the_last_one_counts(self) -> None:
        """In one batch, and over batches."""
        with self._opened() as target:
            target.write(0, rows(("tea", 1.0), ("cup", 2.0), ("tea", 3.0)))
            target.write(1, rows(("cup", 4.0)))
        newest = [("cup", 4.0), ("tea", 3.0)]
        every = [("cup", 2.0), ("cup", 4.0), ("tea", 1.0), ("tea", 3.0)]
        assert self._held() == (newest if self.replaces else every)

    def test_rows_that_are_deleted_go(self) -> None:
        """If the sink deletes at all; what was not there may be deleted too."""
        if not self.deletes:
            return
        with self._opened(schema=WITH_DELETED) as target:
            target.write(0, rows(("tea", 1.0, False), ("cup", 2.0, None)))
            target.write(1, rows(("tea", None, True), ("pot", None, True), ("mug", 1.0, False)))
        assert self._held() == [("cup", 2.0), ("mug", 1.0)]

    def test_a_new_generation_begins_at_nothing(self) -> None:
        """After a reset, the numbers of batches begin at 0 again, and are written."""
        with self._opened() as target:
            target.write(7, rows(("tea", 1.0)))
        with self._opened(generation=2) as target:
            assert target.newest() is None
            target.write(0, rows(("cup", 2.0)))
            assert target.newest() == 0
        assert self._held() == [("cup", 2.0), ("tea", 1.0)]

    def test_jobs_do_not_know_of_one_another(self) -> None:
        """Two jobs that write one target have batches of their own."""
        with self._opened() as one, self._opened(job="shop.other") as other:
            one.write(7, rows(("tea", 1.0)))
            assert other.newest() is None
            other.write(0, rows(("cup", 2.0)))
            assert (one.newest(), other.newest()) == (7, 0)

    def test_a_writer_that_is_killed_leaves_whole_batches(self) -> None:
        """Rows are there of all batches up to the newest, and of none after it."""
        if not self.is_atomic:
            return
        written = self._write_until_killed()
        with self._opened() as target:
            newest = target.newest()
            assert newest is not None
            assert written <= newest
            assert self._held() == sorted(row for n in range(newest + 1) for row in _batch(n))
            target.write(newest + 1, rows(*_batch(newest + 1)))
        assert len(self._held()) == (newest + 2) * ROWS_OF_A_BATCH

    def _write_until_killed(self) -> int:
        """Have another process write batch after batch, and kill it; the last of which it told."""
        reader, writer = multiprocessing.Pipe(duplex=False)
        with warnings.catch_warnings():
            # Of threads that the child does not have: it uses none of what they did.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            self._write_for_ever(writer)
        writer.close()
        told = [reader.recv() for _ in range(WRITTEN_BEFORE_A_KILL)]
        os.kill(child, 9)
        os.waitpid(child, 0)
        reader.close()
        return int(told[-1])

    def _write_for_ever(self, told: Any) -> None:
        try:
            with self._opened() as target:
                for batch in range(1_000_000):
                    target.write(batch, rows(*_batch(batch)))
                    told.send(batch)
        except BaseException:  # noqa: BLE001  the child ends here, whatever it was
            traceback.print_exc()
        finally:
            os._exit(1)

    @contextmanager
    def _opened(
        self, *, job: str = "shop.revenue", generation: int = 1, schema: pa.Schema = SCHEMA
    ) -> Iterator[Target]:
        place = Place(
            job=job,
            generation=generation,
            schema=schema,
            folder=LocalFolder(self.folder / "outputs" / f"{job}-{generation}"),
            state=self.folder,
        )
        with closing(self.sink().open(place)) as target:
            yield target

    def _held(self) -> list[tuple[str, float]]:
        return sorted((row["product"], row["revenue"]) for row in self.read())


def rows(*given: tuple[Any, ...]) -> pa.Table:
    """A table of rows: product, revenue and, if there is a third, whether the row is deleted."""
    schema = WITH_DELETED if len(given[0]) == 3 else SCHEMA
    columns = [list(column) for column in zip(*given, strict=True)]
    return pa.table(columns, schema=schema)


def _batch(number: int) -> list[tuple[str, float]]:
    """The rows of a batch in the test of kills: no two of them have the same key."""
    return [(f"product {number:05}-{row:05}", float(number)) for row in range(ROWS_OF_A_BATCH)]
