"""A micro-batch is one transaction: its output, its mark and its positions are there together, once."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace.client.cluster import Cluster
from headrace.client.shared_transaction import SharedTransaction
from headrace.spark import transactional_batch
from headrace.spark.errors import BadColumns, UnknownTopic
from headrace.spark.transactional_sink import Batch
from tests.spark.transactional_pipeline import ONCE, Pipeline, read_committed, stop_at

VALUES = [f"{letter}{number}" for number in range(20) for letter in "abcde"]
CAPITALS = sorted(value.upper() for value in VALUES)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pipeline(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Pipeline:
    made = Pipeline(spark, bootstrap, tmp_path)
    made.fill(VALUES)
    return made


def test_output_mark_and_positions_appear_together(pipeline: Pipeline) -> None:
    before = []

    def look(step: str, _batch: int) -> None:
        if step == "marked":
            marks = read_committed(pipeline.bootstrap, "headrace.progress", 1)[0]
            before.append((pipeline.sorted_output(), [mark for mark in marks if pipeline.source in mark]))

    pipeline.run(steps=look)
    assert before == [([], [])]
    assert pipeline.sorted_output() == CAPITALS
    assert sum(pipeline.positions()) == len(VALUES)
    mark = pipeline.mark()
    assert mark is not None
    assert (mark.query, mark.batch) == (pipeline.query_id(), 0)
    assert list(mark.offsets[pipeline.source].values()) == pipeline.positions()


def test_a_batch_that_was_committed_is_not_written_again(pipeline: Pipeline) -> None:
    with pytest.raises(StreamingQueryException, match="stopped at committed"):
        pipeline.run(steps=stop_at("committed", 0))
    reached: list[tuple[str, int]] = []
    pipeline.fill(["z1"])
    pipeline.run(steps=lambda step, batch: reached.append((step, batch)))
    assert pipeline.sorted_output() == [*CAPITALS, "Z1"]
    assert [step for step, batch in reached if batch == 0] == ["begun"]
    assert ("committed", 1) in reached


def test_a_batch_that_failed_after_writing_counts_for_nothing_and_runs_again(pipeline: Pipeline) -> None:
    with pytest.raises(StreamingQueryException, match="stopped at marked"):
        pipeline.run(steps=stop_at("marked", 0))
    assert pipeline.sorted_output() == []
    assert pipeline.positions() == [-1001, -1001]
    pipeline.run()
    assert pipeline.sorted_output() == CAPITALS


def test_a_second_driver_fences_the_first(pipeline: Pipeline) -> None:
    def take_over(step: str, _batch: int) -> None:
        if step == "written":
            with Cluster.of(pipeline.bootstrap) as cluster:
                SharedTransaction.open(cluster, f"headrace.{pipeline.job}")

    with pytest.raises(StreamingQueryException, match="is run by another driver now"):
        pipeline.run(steps=take_over)
    assert pipeline.sorted_output() == []
    pipeline.run()
    assert pipeline.sorted_output() == CAPITALS


def test_tasks_write_what_the_driver_would_write(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.run()
    by_driver = pipeline.output()
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run(spool=False, inline_bytes=0)
    by_both = pipeline.output()
    assert [values[len(first) :] for values, first in zip(by_both, by_driver, strict=True)] == by_driver


def test_a_new_checkpoint_does_not_heed_the_marks_of_the_old_one(pipeline: Pipeline) -> None:
    pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run()
    assert pipeline.sorted_output() == sorted(CAPITALS * 2)


def test_a_batch_that_is_too_large_for_the_driver_goes_to_the_tasks(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[DataFrame] = []
    write_stage = transactional_batch.write_stage

    def noticed(*args: Any, **kwargs: Any) -> DataFrame:
        jobs.append(write_stage(*args, **kwargs))
        return jobs[-1]

    monkeypatch.setattr(transactional_batch, "write_stage", noticed)
    long = F.repeat(F.upper(F.col("value").cast("string")), 1000)
    pipeline.run(pipeline.rows(long), spool=False, inline_bytes=20_000)
    assert len(jobs) == 1
    assert pipeline.sorted_output() == sorted(value * 1000 for value in CAPITALS)


def test_state_is_counted_once_when_a_batch_changes_its_way(pipeline: Pipeline) -> None:
    text = F.concat_ws(" ", F.col("key").cast("string"), "count", F.repeat(F.lit("x"), 10_000))
    for more in (0, 1):
        counted = pipeline.rows().groupBy("key").count().select("key", text.alias("value"))
        pipeline.run(counted, output_mode="update", spool=False, inline_bytes=11_000)
        expected = [f"{letter} {20 + n}" for letter in "abcde" for n in range(more + 1)]
        assert [value.rpartition(" ")[0] for value in pipeline.sorted_output()] == expected
        pipeline.fill("abcde")


def test_a_task_that_fails_aborts_its_batch(pipeline: Pipeline) -> None:
    text = F.col("value").cast("string")
    failing = F.when(text == "e19", F.raise_error(F.lit("no e19"))).otherwise(F.upper(text))
    with pytest.raises(StreamingQueryException, match="no e19"):
        pipeline.run(pipeline.rows(failing), spool=False, inline_bytes=0)
    assert pipeline.sorted_output() == []
    pipeline.run()
    assert pipeline.sorted_output() == CAPITALS


def test_extra_rows_are_of_the_same_transaction(pipeline: Pipeline) -> None:
    seen: list[int] = []

    def extra(batch: Batch) -> DataFrame:
        seen.extend(sum(side[pipeline.source].values()) for side in (batch.start, batch.end))
        return pipeline.spark.range(1).select(F.lit(f"extra {batch.id}".encode()).alias("value"))

    pipeline.run(extra_rows=extra)
    pipeline.fill(["z1"])
    with pytest.raises(StreamingQueryException, match="stopped at marked"):
        pipeline.run(extra_rows=extra, spool=False, inline_bytes=0, steps=stop_at("marked", 1))
    assert pipeline.sorted_output() == [*CAPITALS, "extra 0"]
    pipeline.run(extra_rows=extra, spool=False, inline_bytes=0)
    assert pipeline.sorted_output() == [*CAPITALS, "Z1", "extra 0", "extra 1"]
    assert seen == [0, 100, 100, 101, 100, 101]


def test_a_checkpoint_that_fell_behind_its_marks_is_refused(pipeline: Pipeline) -> None:
    pipeline.run()
    pipeline.fill(["y1"])
    pipeline.run()
    for log in ("offsets", "commits"):
        (pipeline.checkpoint / log / "1").unlink()
    pipeline.fill(["z1"])
    with pytest.raises(StreamingQueryException, match="batch 1 of the same query was committed"):
        pipeline.run()
    assert pipeline.sorted_output() == [*CAPITALS, "Y1"]


def test_many_batches_of_one_query_follow_one_another(pipeline: Pipeline) -> None:
    committed = []

    def steps(step: str, batch: int) -> None:
        if step == "committed":
            committed.append(batch)

    pipeline.run(pipeline.rows(maxOffsetsPerTrigger="20"), steps=steps)
    assert committed == list(range(len(committed)))
    assert len(committed) >= 5
    assert pipeline.sorted_output() == CAPITALS


def test_rows_that_cannot_become_records_are_refused_before_the_query_starts(
    pipeline: Pipeline,
) -> None:
    rows = pipeline.rows()
    with pipeline.sink() as sink:
        with pytest.raises(BadColumns, match="no column number"):
            pipeline.start(sink, rows.withColumn("number", F.lit(1)), trigger=ONCE)
        with pytest.raises(BadColumns, match="a column value"):
            pipeline.start(sink, rows.drop("value"), trigger=ONCE)
    with pipeline.sink(topics=["nowhere"]) as sink, pytest.raises(UnknownTopic, match="nowhere"):
        pipeline.start(sink, rows, trigger=ONCE)
