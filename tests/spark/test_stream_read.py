"""`spark.readStream.format("headrace")`: a topic as a stream."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark.checkpoint import without_offset_markers
from tests.spark.records import add_partitions, committed, create_topic, delete_records, produce, read_stream

# The first of them waits for the JVM.
pytestmark = pytest.mark.timeout(300)

Run = Callable[..., tuple[list[str], StreamingQuery]]


@pytest.fixture
def run(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Run:
    """Runs a query over all that is there, and gives its values; again, and it goes on where it was."""

    def run(before: Callable[[int], None] | None = None, **options: str) -> tuple[list[str], StreamingQuery]:
        values: list[str] = []

        def gather(rows: DataFrame, batch: int) -> None:
            if before is not None:
                before(batch)
            values.extend(row.value for row in rows.selectExpr("cast(value as string) value").collect())

        rows = read_stream(spark, bootstrap, {"subscribe": "orders", "startingOffsets": "earliest"} | options)
        writer = rows.writeStream.foreachBatch(gather).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        return values, query

    return run


def end_offset(query: StreamingQuery) -> dict[str, Any]:
    progress = query.lastProgress
    assert progress is not None
    return without_offset_markers(json.loads(progress["sources"][0]["endOffset"]))


def test_a_stream_goes_on_where_it_was(run: Run, bootstrap: str) -> None:
    create_topic(bootstrap, "orders", 1)
    produce(bootstrap, "orders", ["1", "2", "3"])
    limited = {"maxOffsetsPerTrigger": "2", "kafka.group.id": "watched"}
    values, query = run(**limited)
    assert (values, end_offset(query)) == (["1", "2", "3"], {"orders": {"0": 3}})
    assert [progress["numInputRows"] for progress in query.recentProgress] == [2, 1]
    assert committed(bootstrap, "watched") == {0: 3}
    add_partitions(bootstrap, "orders", 2)
    produce(bootstrap, "orders", ["4"], partition=1)
    values, query = run(**limited)
    assert (values, end_offset(query)) == (["4"], {"orders": {"0": 3, "1": 1}})


def test_a_stream_that_begins_at_the_end_begins_there_once(run: Run, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["old", "old"])

    def die(batch: int) -> None:
        produce(bootstrap, "orders", [f"written during batch {batch}"])
        raise ValueError("killed")

    with pytest.raises(StreamingQueryException, match="killed"):
        run(die, startingOffsets="latest")
    produce(bootstrap, "orders", ["written while it was down"])
    values, _ = run(startingOffsets="latest")
    assert values == ["written during batch 0", "written while it was down"]


def test_lost_offsets_stop_a_stream_unless_it_may_lose_them(run: Run, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["1", "2"])
    run()
    produce(bootstrap, "orders", ["3", "4", "5"])
    delete_records(bootstrap, "orders", 0, 4)
    with pytest.raises(StreamingQueryException, match=r"orders/0 lost the offsets 2 to 3.*failOnDataLoss"):
        run()
    values, _ = run(failOnDataLoss="false")
    assert values == ["5"]
