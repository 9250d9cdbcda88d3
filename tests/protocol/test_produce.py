"""Produce, every version: our hand-made reader and packer against kio's entities."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.protocol.errors import ProtocolError
from headrace.protocol.produce import VERSIONS, PartitionResult, pack_produce_response, read_produce
from headrace.protocol.requests import is_flexible, read_request_header
from tests.broker.wire_client import pack_request, read_response
from tests.protocol.entities import requests, scalars

PRODUCE = 0
ALL_VERSIONS = range(VERSIONS[0], VERSIONS[1] + 1)
TYPES = scalars([0, 30_000], [b"", b"a batch", b"x" * 300])

results = st.builds(
    PartitionResult,
    st.integers(0, 2**31 - 1),
    st.sampled_from([ErrorCode.none, ErrorCode.corrupt_message, ErrorCode.kafka_storage_error]),
    st.integers(-1, 2**63 - 1),
    st.sampled_from([-1, 0, 1_700_000_000_000]),
    st.integers(-1, 2**63 - 1),
    st.none() | st.text(max_size=200),
)


def read(payload, version):
    frame = memoryview(payload)
    header = read_request_header(frame, is_flexible)
    assert (header.api_key, header.version) == (PRODUCE, version)
    return read_produce(frame, header.body, version)


def name_of(topic):
    """The topic as kio has it: by name, or by an id of which None is the one of sixteen zeroes."""
    return topic.name if hasattr(topic, "name") else topic.topic_id or UUID(int=0)


@pytest.mark.parametrize("version", ALL_VERSIONS)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_request_that_kio_wrote_is_read(version, data):
    sent = data.draw(requests(PRODUCE, version, TYPES))
    found = read(pack_request(PRODUCE, version, sent), version)
    assert (found.transactional_id, found.acks) == (sent.transactional_id, sent.acks)
    assert [
        (topic, [(index, None if records is None else bytes(records)) for index, records in partitions])
        for topic, partitions in found.topics
    ] == [
        (name_of(topic), [(each.index, each.records) for each in topic.partition_data])
        for topic in sent.topic_data
    ]


@pytest.mark.parametrize("version", ALL_VERSIONS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_a_request_that_ends_early_is_refused_wherever_it_ends(version, data):
    whole = pack_request(PRODUCE, version, data.draw(requests(PRODUCE, version, TYPES)))
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        read(whole[:size], version)


def test_batches_are_not_copied_out_of_the_frame():
    frame = memoryview(
        bytearray(b"\xff\xff" + struct.pack(">hiihsi", 1, 0, 1, 1, b"t", 1) + b"\0\0\0\0\0\0\0\3abc")
    )
    request = read_produce(frame, 0, 7)
    ((_, records),) = request.topics[0].partitions
    frame[-1] = ord("!")
    assert records == b"ab!"


@pytest.mark.parametrize("version", ALL_VERSIONS)
@given(
    topics=st.lists(
        st.tuples(st.text("abc", min_size=1), st.integers(1, 2**64), st.lists(results, max_size=3))
    ),
    correlation_id=st.integers(0, 2**31 - 1),
)
@settings(max_examples=12, deadline=None)
def test_an_answer_that_we_packed_is_read_by_kio(version, topics, correlation_id):
    named = [(UUID(int=id_) if version >= 13 else name, answers) for name, id_, answers in topics]
    packed = pack_produce_response(version, correlation_id, named)
    (size,) = struct.unpack_from(">i", packed)
    assert size == len(packed) - 4
    answered, entity = read_response(PRODUCE, version, packed[4:])
    assert answered == correlation_id
    assert [name_of(topic) for topic in entity.responses] == [name for name, _ in named]
    for topic, (_, answers) in zip(entity.responses, named, strict=True):
        assert [fields(each, version) for each in topic.partition_responses] == [
            expected(each, version) for each in answers
        ]


def fields(partition, version):
    """What kio found, in our order."""
    time = partition.log_append_time
    return (
        partition.index,
        partition.error_code,
        partition.base_offset,
        -1 if time is None else round(time.timestamp() * 1000),
        partition.log_start_offset if version >= 5 else None,
        partition.error_message if version >= 8 else None,
    )


def expected(result, version):
    start = result.start_offset if version >= 5 else None
    return (*result[:4], start, result.message if version >= 8 else None)
