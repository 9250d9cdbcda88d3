"""What Spark writes into a checkpoint, read back; and what a crash in the middle of it leaves."""

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.spark.checkpoint import (
    BadCheckpoint,
    SparkCheckpoint,
    count_records,
    merge_offsets,
    parse_offsets,
)
from headrace.testing import EmbeddedBroker
from tests.spark.transactional_pipeline import Pipeline

OFFSETS = st.dictionaries(
    st.text("abc.-", min_size=1),
    st.dictionaries(st.integers(0, 99).map(str), st.integers(0, 2**40), min_size=1),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('v1\n{}\n{"a":{"0":1}}', [{"a": {"0": 1}}]),
        ('v1\n\n{"a":{"0":1}}\n-\n{"b":{"1":2}}', [{"a": {"0": 1}}, {"b": {"1": 2}}]),
        ('v1\n{}\n17\n{"logOffset":3}\n{"a":{"0":1}}', [{"a": {"0": 1}}]),
        ('v2\n{}\n0:{"a":{"0":1}}\norders:-', [{"a": {"0": 1}}]),
        (
            'v1\n{}\n{"a":{"0":7},"headrace.topic-ids":{"a":"x"},"headrace.first":{"a":{"0":5}}}',
            [{"a": {"0": 7}}],
        ),
        ("v1\n{}", []),
    ],
)
def test_offsets_of_topics_are_found_among_those_of_other_sources(
    text: str, expected: list[dict[str, dict[str, int]]]
) -> None:
    assert parse_offsets(text, "offsets/3") == expected


@pytest.mark.parametrize("text", ["", "v1", "v9\n{}\n{}", "\0\0\0\0"])
def test_a_torn_offsets_file_is_named(text: str) -> None:
    with pytest.raises(BadCheckpoint, match="offsets/3 is not an offsets file"):
        parse_offsets(text, "offsets/3")


@given(st.lists(OFFSETS, max_size=3))
def test_a_partition_that_several_sources_read_counts_as_far_as_all_have_read_it(
    sources: list[dict[str, dict[str, int]]],
) -> None:
    merged = merge_offsets(sources)
    every = [
        (topic, number, offset)
        for source in sources
        for topic, numbers in source.items()
        for number, offset in numbers.items()
    ]
    assert {(topic, number) for topic, number, _ in every} == {
        (topic, number) for topic, numbers in merged.items() for number in numbers
    }
    assert all(merged[topic][number] <= offset for topic, number, offset in every)
    assert all(
        (topic, number, offset) in every for topic, ns in merged.items() for number, offset in ns.items()
    )


def test_records_between_positions_are_counted_from_zero_where_the_start_is_unknown() -> None:
    assert count_records({"a": {"0": 5}}, {"a": {"0": 7, "1": 3}, "b": {"0": 1}}) == 6


def write_checkpoint(folder: Path) -> None:
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"82d38e38"}')
    (folder / "offsets" / "4").write_text('v1\n{}\n{"a":{"0":1}}')


def test_a_checkpoint_on_this_machine_is_read(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(str(tmp_path / "c"))
    assert checkpoint.query_id() is None
    write_checkpoint(tmp_path / "c")
    assert checkpoint.query_id() == "82d38e38"
    assert checkpoint.offsets(4) == {"a": {"0": 1}}
    with pytest.raises(BadCheckpoint, match="no offsets of batch 5"):
        checkpoint.offsets(5)


def test_a_checkpoint_on_another_file_system_is_read_through_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    # A view of the local disk under another scheme: Spark reaches it, and this process does not.
    table = f"t{uuid.uuid4().hex}"
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    configuration.set(f"fs.viewfs.mounttable.{table}.link./jobs", f"file://{tmp_path}")
    checkpoint = SparkCheckpoint(f"viewfs://{table}/jobs/c")
    assert checkpoint.query_id() is None
    write_checkpoint(tmp_path / "c")
    assert checkpoint.query_id() == "82d38e38"
    assert checkpoint.offsets(4) == {"a": {"0": 1}}
    with pytest.raises(BadCheckpoint, match=f"viewfs://{table}/jobs/c has no offsets of batch 5"):
        checkpoint.offsets(5)


@pytest.mark.timeout(300)
def test_files_that_a_crash_left_unfinished_are_no_obstacle(
    spark: SparkSession, headrace_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, headrace_broker.bootstrap, tmp_path)
    pipeline.fill(["a1"])
    pipeline.run()
    # Before its rename a file has a hidden name of its own: empty, half-written, or whole.
    for log in ("offsets", "commits"):
        whole = (pipeline.checkpoint / log / "0").read_text()
        for text in ("", whole[: len(whole) // 2], whole):
            (pipeline.checkpoint / log / f".1.{uuid.uuid4()}.tmp").write_text(text)
    pipeline.fill(["a2"])
    pipeline.run()
    assert pipeline.sorted_output() == ["A1", "A2"]
