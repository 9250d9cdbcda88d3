"""Record batches on their way to the driver through files."""

from collections.abc import Iterator
from pathlib import Path

from headrace.client.partition import TopicPartition
from headrace.columns.encoding import Encoded
from headrace.spark.transactional_spool import Spool, Spooled, read_spool, write_spool


def encoded(topic: str, partition: int, batch: bytes) -> Encoded:
    return Encoded(topic=topic, partition=partition, records=len(batch), batch=batch)


def test_batches_come_back_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    write_spool(tmp_path, 10, 0, [[encoded("b", 1, b"third")]])
    write_spool(tmp_path, 9, 0, [[encoded("a", 0, b"first")], [], [encoded("b", 1, b"second")]])
    write_spool(tmp_path, 11, 0, [])
    assert [(each.partition, bytes(each.batch)) for each in read_spool(tmp_path)] == [
        (TopicPartition("a", 0), b"first"),
        (TopicPartition("b", 1), b"second"),
        (TopicPartition("b", 1), b"third"),
    ]


def test_a_task_that_is_repeated_counts_once_and_one_that_failed_not_at_all(tmp_path: Path) -> None:
    def failing() -> Iterator[list[Encoded]]:
        yield [encoded("a", 0, b"half")]
        raise RuntimeError

    try:
        write_spool(tmp_path, 0, 0, failing())
    except RuntimeError:
        write_spool(tmp_path, 0, 1, [[encoded("a", 0, b"whole")]])
    write_spool(tmp_path, 0, 2, [[encoded("a", 0, b"whole")]])
    assert read_spool(tmp_path) == [Spooled(TopicPartition("a", 0), 5, b"whole")]


def test_batches_outlive_their_files_and_nothing_is_left_behind(tmp_path: Path) -> None:
    left = tmp_path / "spool" / "0"
    left.mkdir(parents=True)
    (left / "0.spool").write_bytes(b"of a driver that was killed")
    with Spool(tmp_path / "spool") as spool:
        folders = [spool.folder(), spool.folder()]
        write_spool(folders[1], 0, 0, [[encoded("a", 0, b"kept")]])
        assert read_spool(folders[0]) == []
        (kept,) = read_spool(folders[1])
    assert list(tmp_path.iterdir()) == []
    assert bytes(kept.batch) == b"kept"
