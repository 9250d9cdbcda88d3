"""How ranges become tasks, and how a limit is shared: the rules hold for any ranges."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.partition import TopicPartition
from headrace.spark.offsets import LARGE, SMALL, Range, limit_offsets, ranges_between, tasks

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["orders", "payments"]), st.integers(0, 5))
POSITIONS = st.dictionaries(PARTITIONS, st.integers(0, 3 * LARGE), max_size=6)
SIZES = st.one_of(st.integers(0, 100), st.integers(0, 3 * LARGE))


@st.composite
def some_ranges(draw: st.DrawFn) -> list[Range]:
    starts = draw(POSITIONS)
    return [Range(partition, start, start + draw(SIZES)) for partition, start in starts.items()]


def joined(parts: list[Range]) -> list[Range]:
    """Ranges that touch, put together."""
    whole: list[Range] = []
    for part in sorted(parts):
        if whole and whole[-1].partition == part.partition and whole[-1].end == part.start:
            whole[-1] = Range(part.partition, whole[-1].start, part.end)
        else:
            whole.append(part)
    return whole


@given(some_ranges(), st.integers(1, 16), st.integers(1, 20))
def test_tasks_read_each_offset_once(ranges: list[Range], parallelism: int, at_least: int) -> None:
    planned = tasks(ranges, parallelism=parallelism, at_least=at_least)
    assert joined([part for task in planned for part in task]) == sorted(r for r in ranges if r.size > 0)
    assert all(part.size > 0 for task in planned for part in task)


@given(some_ranges(), st.integers(1, 16))
def test_no_task_is_much_larger_than_its_share(ranges: list[Range], parallelism: int) -> None:
    planned = tasks(ranges, parallelism=parallelism)
    total = sum(part.size for part in ranges)
    if total:
        share = total / len(planned)
        assert max(sum(part.size for part in task) for task in planned) <= max(share * 2, SMALL * 1.1)


@given(some_ranges(), st.integers(1, 1000))
def test_no_task_has_more_records_than_it_may(ranges: list[Range], most: int) -> None:
    small = [Range(partition, start, min(end, start + 20_000)) for partition, start, end in ranges]
    planned = tasks(small, parallelism=2, most_records=most)
    assert all(sum(part.size for part in task) <= most for task in planned)


def test_a_small_batch_of_many_partitions_is_one_task() -> None:
    ranges = [Range(TopicPartition("orders", number), 10, 20) for number in range(12)]
    assert tasks(ranges, parallelism=8) == [tuple(ranges)]


def test_one_large_partition_keeps_all_cores_busy() -> None:
    planned = tasks([Range(TopicPartition("orders", 0), 0, 1_000_000)], parallelism=4)
    assert [task[0].size for task in planned] == [250_000] * 4


def test_a_huge_read_is_cut_into_a_multiple_of_the_cores() -> None:
    planned = tasks([Range(TopicPartition("orders", 0), 0, 9 * LARGE)], parallelism=4)
    assert len(planned) == 12


def test_as_many_tasks_as_were_asked_for() -> None:
    planned = tasks([Range(TopicPartition("orders", 0), 0, 100)], parallelism=2, at_least=10)
    assert len(planned) == 10


def test_a_sliver_at_the_border_of_a_partition_is_not_cut_off() -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    planned = tasks([Range(first, 0, 101_000), Range(second, 0, 99_000)], parallelism=2)
    assert planned == [(Range(first, 0, 101_000),), (Range(second, 0, 99_000),)]


@given(POSITIONS, st.data())
def test_a_shared_limit_is_kept_and_nobody_goes_backwards(
    start: dict[TopicPartition, int], data: st.DataObject
) -> None:
    latest = {partition: offset + data.draw(SIZES) for partition, offset in start.items()}
    limit = data.draw(st.integers(1, 5_000_000))
    ends = limit_offsets(start, latest, limit)
    assert all(start[partition] <= ends[partition] <= latest[partition] for partition in start)
    assert sum(ends[p] - start[p] for p in start) <= max(limit, limit + len(start))
    assert all(ends[p] > start[p] for p in start if latest[p] > start[p])


def test_a_limit_is_shared_in_proportion() -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    ends = limit_offsets({first: 0, second: 100}, {first: 900, second: 200}, 100)
    assert ends == {first: 90, second: 110}


def test_what_lies_between_two_positions() -> None:
    longer, truncated = (TopicPartition("orders", number) for number in range(2))
    ranges = ranges_between({longer: 5, truncated: 70}, {longer: 9, truncated: 4})
    assert ranges == [Range(longer, 5, 9), Range(truncated, 4, 4)]
