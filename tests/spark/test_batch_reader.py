"""What a batch read plans and reads, without a JVM."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError
from headrace.spark import rows
from headrace.spark.batch_reader import BatchReader
from headrace.spark.errors import DataLost, UnknownTopic
from headrace.spark.source import SourceSettings
from tests.spark.records import create_topic, delete_records, produce

Read = Callable[..., list[bytes | None]]


@pytest.fixture
def read(bootstrap: str) -> Read:
    """Reads values as a query would, in this process."""

    def read(**options: str) -> list[bytes | None]:
        named = {"kafka.bootstrap.servers": bootstrap, "subscribe": "orders"} | options
        settings = SourceSettings.of(named, parallelism=2)
        schema = settings.layout.schema()
        assert isinstance(schema, StructType)
        reader = BatchReader(settings, schema)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        settings.link.hang_up()
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    return read


def test_an_empty_topic_is_an_empty_table(read: Read, bootstrap: str) -> None:
    create_topic(bootstrap, "orders", 3)
    assert read() == []


def test_small_partitions_are_read_in_their_order(read: Read, bootstrap: str) -> None:
    create_topic(bootstrap, "orders", 3)
    for number in range(3):
        produce(bootstrap, "orders", [f"{number}a", None, f"{number}c"], partition=number)
    assert read() == [b"0a", None, b"0c", b"1a", None, b"1c", b"2a", None, b"2c"]


def test_spark_gets_batches_of_bounded_size(
    read: Read, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ROWS", 10)
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", [f"{number}" for number in range(35)])
    assert read() == [f"{number}".encode() for number in range(35)]


def test_offsets_beyond_the_end_are_refused_at_once(read: Read, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a", "b"])
    beyond = {"endingOffsets": '{"orders":{"0":5}}'}
    with pytest.raises(DataLost, match=r"orders/0 lost the offsets 2 to 4: the log has 0 to 1"):
        read(**beyond)
    assert read(failOnDataLoss="false", **beyond) == [b"a", b"b"]


def test_times_bound_a_read(read: Read, bootstrap: str) -> None:
    create_topic(bootstrap, "orders", **{"retention.ms": "-1"})
    for hour in range(5):
        produce(bootstrap, "orders", [f"{hour}"], timestamp=1_000_000 + hour)
    assert read(startingTimestamp="1000001", endingTimestamp="1000004") == [b"1", b"2", b"3"]
    assert read(startingOffsetsByTimestamp='{"orders": {"0": 1000003}}') == [b"3", b"4"]
    assert read(startingTimestamp="2000000", startingOffsetsByTimestampStrategy="latest") == []


def test_records_that_were_removed_fail_a_read_that_names_them(read: Read, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a", "b", "c"])
    delete_records(bootstrap, "orders", 0, 2)
    from_zero = {"startingOffsets": '{"orders":{"0":0}}'}
    with pytest.raises(DataLost, match=r"orders/0 lost the offsets 0 to 1.*failOnDataLoss"):
        read(**from_zero)
    assert read(failOnDataLoss="false", **from_zero) == [b"c"]
    assert read() == [b"c"]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "bounds the batches of a stream"),
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"startingOffsets": '{"orders":{"7":1}}'}, "names orders-7"),
        ({"startingOffsets": '{"payments":{"0":1}}'}, "names payments-0"),
        ({"startingTimestamp": "9999999999999"}, "no record of orders-0 is as late"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(
    read: Read, bootstrap: str, options: dict[str, str], hint: str
) -> None:
    create_topic(bootstrap, "orders")
    with pytest.raises(HeadraceError, match=hint):
        read(**options)


def test_what_does_not_exist_is_named(read: Read, bootstrap: str) -> None:
    with pytest.raises(UnknownTopic, match="the cluster has no 'missing'"):
        read(subscribe="missing")
    create_topic(bootstrap, "orders")
    with pytest.raises(UnknownTopic, match="the cluster has no orders/1"):
        read(subscribe="", assign='{"orders": [0, 1]}')


def test_a_planner_loads_neither_arrow_nor_compiled_code_nor_the_client() -> None:
    program = "import sys, headrace.spark.source; print({'pyarrow', 'numba', 'kio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
