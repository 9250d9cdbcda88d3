"""Keyed stages: a kernel for each partition, and state that crashes and repetitions cannot spoil."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
from pyspark.sql.types import StructType

from headrace.columns.keyed import Kernel, KernelResult, Times
from headrace.errors import Misuse
from headrace.spark.keyed_stage import BatchTimes, KeyedStage
from headrace.spark.keyed_state import (
    BadState,
    PartitionState,
    StateManifest,
    forget_late_rows,
    late_rows,
    local_folder,
    read_manifest,
    write_manifest,
)
from headrace.spark.segment_state import SegmentStore

pytestmark = pytest.mark.timeout(300)

OUTPUT = StructType().add("key", "long").add("seen", "long")


def kept(number: int) -> pa.Table:
    return pa.table({"n": [number]})


def number_in(state: pa.Table | None) -> int | None:
    return None if state is None else state["n"][0].as_py()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_batch_goes_on_from_the_file_of_the_batch_before(tmp_path: Path) -> None:
    partition = PartitionState(tmp_path, 3)
    assert partition.read(0) is None
    partition.write(0, kept(0), attempt=1)
    assert number_in(partition.read(1)) == 0
    partition.keep(1, attempt=2)
    partition.write(2, kept(2), attempt=2)
    assert number_in(partition.read(2)) == 0  # a repetition finds what was found before
    partition.write(2, kept(20), attempt=3)
    assert number_in(partition.read(3)) == 20
    partition.write(3, None, attempt=4)
    assert partition.read(4) is None


def test_what_no_repetition_can_ask_for_is_removed(tmp_path: Path) -> None:
    partition = PartitionState(tmp_path, 0)
    for batch in range(4):
        partition.write(batch, kept(batch), attempt=0)
    partition.keep(4, attempt=0)
    assert files(tmp_path) == ["0/3.arrow", "0/4.arrow"]


@pytest.mark.parametrize("content", [b"", b"ARROW1"], ids=["empty", "torn"])
def test_a_file_that_is_not_whole_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    partition = PartitionState(tmp_path, 0)
    partition.write(0, kept(0), attempt=0)
    (tmp_path / "0" / "1.9.part").write_bytes(content)
    assert number_in(partition.read(1)) == 0
    (tmp_path / "0" / "0.arrow").write_bytes(content)
    with pytest.raises(BadState, match=r"/0/0\.arrow is not as it was written .*reset the job"):
        partition.read(1)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    partition, store = PartitionState(tmp_path, 0), SegmentStore(tmp_path, 1)
    for act in (lambda: partition.read(5), lambda: partition.keep(5, attempt=0)):
        with pytest.raises(BadState, match=r"/0/4\.arrow is missing"):
            act()
    for look in (lambda: store.read(5), lambda: store.keep(5)):
        with pytest.raises(BadState, match=r"/1/4 is missing"):
            look()
    with pytest.raises(BadState, match=r"stage\.json is missing"):
        write_manifest(tmp_path, StateManifest(partitions=3, outline="sums"), batch=5)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=12))
@settings(max_examples=40, deadline=None)
def test_crashes_and_repetitions_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[bool, bool, bool]]
) -> None:
    """Each batch adds its number, or changes nothing; and may crash before or after its file was written."""
    partition = PartitionState(tmp_path_factory.mktemp("state"), 0)
    total = 0
    for batch, (changes, crashes_before, crashes_after) in enumerate(batches):
        for crashes in (crashes_before, crashes_after):
            state = number_in(partition.read(batch)) or 0
            assert state == total
            if crashes and changes:
                partition.write(batch, kept(state + batch), attempt=1)
            elif crashes:
                partition.keep(batch, attempt=1)
        if changes:
            partition.write(batch, kept(total + batch), attempt=2)
            total += batch
        else:
            partition.keep(batch, attempt=2)
    assert (number_in(partition.read(len(batches))) or 0) == total


def test_late_rows_are_counted_for_each_batch(tmp_path: Path) -> None:
    for stage, partition, rows in ((0, 0, 2), (0, 1, 3), (1, 0, 5), (1, 1, 0)):
        PartitionState(tmp_path / f"stage-{stage}", partition).write_late(4, rows)
    assert late_rows(str(tmp_path), 4) == 10
    assert late_rows(f"file://{tmp_path}", 5) == 0
    forget_late_rows(tmp_path / "stage-0", before=5)
    assert late_rows(str(tmp_path), 4) == 5


def test_what_must_not_change_is_noted_once(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    write_manifest(tmp_path, StateManifest(partitions=3, outline="sums"), batch=0)
    write_manifest(tmp_path, StateManifest(partitions=4, outline="others"), batch=1)
    assert read_manifest(tmp_path) == StateManifest(partitions=3, outline="sums")
    (tmp_path / "stage.json").write_text("{")
    with pytest.raises(BadState, match="reset"):
        read_manifest(tmp_path)


def test_a_place_that_is_no_folder_is_refused() -> None:
    assert local_folder("/state/x") == local_folder("file:///state/x") == local_folder("file:/state/x")
    with pytest.raises(Misuse, match="a folder that all machines see"):
        local_folder("hdfs://name/state")


def counting() -> Kernel:
    """How often each key was seen so far; and as many late rows as the late watermark has milliseconds."""
    schema = pa.schema([("key", pa.int64()), ("seen", pa.int64())])

    def count(rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        if not rows.num_rows:
            return KernelResult(schema.empty_table(), state, times.late_us // 1000)
        now = (
            rows.group_by("the.key")
            .aggregate([([], "count_all")])
            .rename_columns(["key", "seen"])
            .cast(schema)
        )
        both = now if state is None else pa.concat_tables([state, now])
        total = both.group_by("key").aggregate([("seen", "sum")]).rename_columns(["key", "seen"]).cast(schema)
        return KernelResult(total, total, times.late_us // 1000)

    return count


class Bench:
    """A stage over plain DataFrames: a batch is a query, and can be repeated."""

    def __init__(self, spark: SparkSession, folder: Path, keys: tuple[str, ...] = ("the.key",)) -> None:
        self.spark = spark
        self.stage = KeyedStage(
            folder=str(folder), keys=keys, kernel=counting(), schema=OUTPUT, outline="counts"
        )

    def rows(self, batch: int, keys: list[int], late_ms: int = 0) -> DataFrame:
        frame = self.spark.range(len(keys)).select(
            F.element_at(F.lit(keys or [0]), F.col("id").cast("int") + 1)
        )
        frame = frame.toDF("key").select(F.col("key").cast("bigint").alias("the.key"))
        made = self.stage.step(frame).rows
        described: Any = _Batch(id=batch, late_ms=late_ms)
        self.stage.prepare(described, frame)
        return made

    def run(self, batch: int, keys: list[int], late_ms: int = 0) -> dict[int, int]:
        return {row["key"]: row["seen"] for row in self.rows(batch, keys, late_ms).collect()}


@dataclass
class _Batch:
    id: int
    late_ms: int
    watermark_ms: int = 0


def test_a_stage_keeps_state_by_key_and_a_repeated_batch_gives_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(spark, tmp_path / "stage-0")
    assert bench.run(0, [1, 2, 2]) == {1: 1, 2: 2}
    assert bench.run(1, [2, 3]).items() >= {2: 3, 3: 1}.items()
    assert bench.run(1, [2, 3]).items() >= {2: 3, 3: 1}.items()
    assert bench.run(2, [], late_ms=4) == {}
    assert late_rows(str(tmp_path), 2) == 8  # both partitions, though they had no rows
    assert bench.run(3, [1, 2, 3]) == {1: 2, 2: 4, 3: 2}


def test_another_number_of_cores_does_not_divide_the_keys_in_another_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    keys = list(range(20))
    Bench(spark, tmp_path).run(0, keys)
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        assert Bench(spark, tmp_path).run(1, keys) == dict.fromkeys(keys, 2)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_tasks_that_would_take_the_state_of_others_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(spark, tmp_path)
    rows = bench.rows(0, [1, 2, 3, 4])
    for plan in (rows.coalesce(1), spark.range(2).toDF("key").selectExpr("key", "key").union(rows)):
        with pytest.raises(Exception, match="do that before the window"):
            plan.collect()


def test_rows_outside_of_a_job_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = Bench(spark, tmp_path).rows(0, [1])
    spark.sparkContext.setLocalProperty("headrace.batch", None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="only by a job"):
        rows.collect()


def test_times_reach_kernels_in_microseconds() -> None:
    times = BatchTimes(batch=1, late_ms=2, watermark_ms=3).times
    assert times == Times(2000, 3000)
    assert times.behind(500) == Times(1500, 2500)
