"""Keyed stages: a kernel for each partition, and state that crashes and repetitions cannot spoil."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
from pyspark.sql.types import StructType

from headrace.columns.keyed import NEVER, Deadlines, Kernel, KernelResult, StatefulKernel, Times
from headrace.errors import Misuse
from headrace.spark.keyed_stage import BatchTimes, KeyedStage
from headrace.state.files import BadState, LocalStateFiles, local_folder
from headrace.state.keyed import KeyedState
from headrace.state.operators import OperatorManifest, read_operator, state_figures, write_operator

pytestmark = pytest.mark.timeout(300)

OUTPUT = StructType().add("key", "long").add("seen", "long")


def advance(folder: Path, version: int, keys: list[int], late_ms: int = 0) -> dict[int, int]:
    """A batch of one partition, without Spark."""
    state = KeyedState(files=LocalStateFiles(folder), keys=("key",), kernel=counting())
    output = state.advance(version, pa.table({"key": pa.array(keys, pa.int64())}), Times(1000 * late_ms, 0))
    return {row["key"]: row["seen"] for row in output.to_pylist()}


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=3), st.integers(1, 3)), max_size=12))
@settings(max_examples=40, deadline=None)
def test_crashes_and_repetitions_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[list[int], int]]
) -> None:
    """Each batch counts its keys, and runs once or several times."""
    folder, total = tmp_path_factory.mktemp("state"), Counter[int]()
    for version, (keys, attempts) in enumerate(batches):
        total.update(keys)
        for _ in range(attempts):
            assert advance(folder, version, keys) == {key: total[key] for key in keys}


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BadState, match=r"/4\.json is missing"):
        advance(tmp_path, 5, [1])
    with pytest.raises(BadState, match=r"operator\.json is missing"):
        write_operator(str(tmp_path), OperatorManifest(partitions=3, outline="sums"), batch=5)


def test_rows_and_late_rows_are_counted_for_each_batch(tmp_path: Path) -> None:
    for stage, partition, late in ((0, 0, 2), (0, 1, 3), (1, 0, 5), (1, 1, 0)):
        location = tmp_path / f"stage-{stage}"
        write_operator(str(location), OperatorManifest(partitions=2, outline="sums"), batch=0)
        advance(location / str(partition), 0, [1, 2, 2], late)
    figures = state_figures(str(tmp_path), 0)
    assert (figures.rows, figures.late) == (8, 10)
    assert figures.byte_size > 0 < figures.state_ms
    assert state_figures(f"file://{tmp_path}", 1).late == 0


def test_what_must_not_change_is_written_once(tmp_path: Path) -> None:
    location = str(tmp_path)
    assert read_operator(location) is None
    write_operator(location, OperatorManifest(partitions=3, outline="sums"), batch=0)
    write_operator(location, OperatorManifest(partitions=4, outline="others"), batch=1)
    assert read_operator(location) == OperatorManifest(partitions=3, outline="sums")
    (tmp_path / "operator.json").write_text("{")
    with pytest.raises(BadState, match="reset"):
        read_operator(location)


def test_state_of_an_earlier_version_is_refused_with_the_way_forward(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text('{"partitions": 2, "outline": "sums", "columns": {}}')
    with pytest.raises(BadState, match=r"stage\.json was written by an earlier version.*job reset"):
        read_operator(str(tmp_path))
    (tmp_path / "operator.json").write_text('{"format": 0, "partitions": 2, "outline": "sums"}')
    with pytest.raises(BadState, match=r"operator\.json was written by an earlier version.*job reset"):
        read_operator(str(tmp_path))


def test_a_place_that_is_no_folder_is_refused() -> None:
    assert local_folder("/state/x") == local_folder("file:///state/x") == local_folder("file:/state/x")
    with pytest.raises(Misuse, match="a folder that all machines see"):
        local_folder("hdfs://name/state")


def counting() -> Kernel:
    """How often each key was seen so far; and as many late rows as the late watermark has milliseconds.

    The class is in here so that it travels to tasks without this module.
    """

    class Counting(StatefulKernel):
        def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
            schema = pa.schema([("key", pa.int64()), ("seen", pa.int64())])
            if not rows.num_rows:
                return KernelResult(schema.empty_table(), state, times.late_us // 1000)
            now = (
                rows.group_by("key")
                .aggregate([([], "count_all")])
                .rename_columns(["key", "seen"])
                .cast(schema)
            )
            both = now if state is None else pa.concat_tables([state, now])
            total = (
                both.group_by("key").aggregate([("seen", "sum")]).rename_columns(["key", "seen"]).cast(schema)
            )
            return KernelResult(total, total, times.late_us // 1000)

        def deadlines(self, state: pa.Table, times: Times) -> Deadlines:
            never = np.full(state.num_rows, NEVER)
            return Deadlines(never, never)

    return Counting()


class Bench:
    """A stage over plain DataFrames: a batch is a query, and can be repeated."""

    def __init__(self, spark: SparkSession, folder: Path, keys: tuple[str, ...] = ("key",)) -> None:
        self.spark = spark
        self.stage = KeyedStage(
            folder=str(folder), keys=keys, kernel=counting(), schema=OUTPUT, outline="counts"
        )

    def rows(self, batch: int, keys: list[int], late_ms: int = 0) -> DataFrame:
        frame = self.spark.range(len(keys)).select(
            F.element_at(F.lit(keys or [0]), F.col("id").cast("int") + 1)
        )
        frame = frame.toDF("key").select(F.col("key").cast("bigint").alias("key"))
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
    assert state_figures(str(tmp_path), 2).late == 8  # both partitions, though they had no rows
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
