"""What `consume --json` prints, `produce --json` reads: the same record, whatever its bytes."""

from collections import defaultdict

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.record_lines import Headers, InputRecord, json_line, json_lines, plain_lines, read_format

content = st.none() | st.binary() | st.text().map(str.encode)
headers = st.lists(st.tuples(st.sampled_from(["a", "b", "ü"]), content), max_size=5)


def by_name(found: Headers | None) -> dict[str, list[object]]:
    values: dict[str, list[object]] = defaultdict(list)
    for name, value in found or ():
        values[name].append(value)
    return dict(values)


@given(key=content, value=content, headers=headers, partition=st.integers(0, 9), at=st.integers(0, 1 << 50))
def test_a_record_survives_json(
    key: bytes | None, value: bytes | None, headers: Headers, partition: int, at: int
) -> None:
    message = Message(
        topic="t", partition=partition, offset=3, key=key, value=value, headers=headers, timestamp=(1, at)
    )
    line = json_line(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    record = json_lines(headers=[], partition=-1)(line)
    assert (record.key, record.value, record.partition, record.timestamp_ms) == (key, value, partition, at)
    assert by_name(record.headers) == by_name(headers)


@given(key=st.binary(), value=st.binary().filter(lambda value: b"\n" not in value))
def test_a_line_with_a_key_is_what_the_format_with_a_key_prints(key: bytes, value: bytes) -> None:
    if b"\t" in key or b"\n" in key:
        return
    printed = read_format(r"%k\t%v\n")(Message(topic="t", partition=0, offset=0, key=key, value=value))
    read = plain_lines(key=None, separator=b"\t", headers=[], partition=-1)
    assert read(printed.removesuffix(b"\n")) == InputRecord(value=value, key=key)


def test_headers_of_the_command_go_before_those_of_the_line() -> None:
    read = json_lines(headers=[("a", b"1")], partition=-1)
    assert read(b'{"value": "v", "headers": {"a": "2"}}').headers == [("a", b"1"), ("a", b"2")]


def test_a_line_without_a_partition_gets_that_of_the_command() -> None:
    read = json_lines(headers=[], partition=4)
    assert read(b'{"value": "v"}').partition == 4
    assert read(b'{"value": "v", "partition": 2}').partition == 2


def test_a_time_may_be_written_in_iso_form() -> None:
    read = json_lines(headers=[], partition=-1)
    assert read(b'{"value": "v", "timestamp": "1970-01-01T00:00:01Z"}').timestamp_ms == 1000
