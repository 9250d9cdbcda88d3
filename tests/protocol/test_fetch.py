"""Fetch, every version: our hand-made reader and packer against kio's entities."""

from __future__ import annotations

import struct
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.protocol.errors import ProtocolError
from headrace.protocol.fetch import (
    FLEXIBLE_FROM,
    SESSIONS_FROM,
    TOPIC_IDS_FROM,
    VERSIONS,
    FetchResponse,
    PartitionData,
    read_fetch,
)
from headrace.protocol.requests import is_flexible, read_request_header
from tests.broker.wire_client import pack_request, read_response
from tests.protocol.entities import requests, scalars

FETCH = 1
ALL_VERSIONS = range(VERSIONS[0], VERSIONS[1] + 1)
TYPES = scalars([0, 500], [b""])


def read(payload, version):
    frame = memoryview(payload)
    header = read_request_header(frame, is_flexible)
    assert (header.api_key, header.version) == (FETCH, version)
    return read_fetch(frame, header.body, version)


def name_of(topic):
    return topic.topic if hasattr(topic, "topic") else topic.topic_id or UUID(int=0)


@pytest.mark.parametrize("version", ALL_VERSIONS)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_request_that_kio_wrote_is_read(version, data):
    sent = data.draw(requests(FETCH, version, TYPES))
    found = read(pack_request(FETCH, version, sent), version)
    assert found.max_wait_ms == sent.max_wait / timedelta(milliseconds=1)
    assert (found.min_bytes, found.max_bytes) == (sent.min_bytes, sent.max_bytes)
    assert found.read_committed == (sent.isolation_level == 1)
    if version >= SESSIONS_FROM:
        assert (found.session_id, found.session_epoch) == (sent.session_id, sent.session_epoch)
        assert found.forgotten == [(name_of(t), list(t.partitions)) for t in sent.forgotten_topics_data]
    else:
        assert (found.session_id, found.session_epoch, found.forgotten) == (0, -1, [])
    assert found.topics == [
        (
            name_of(topic),
            [
                (
                    each.partition,
                    getattr(each, "current_leader_epoch", -1),
                    each.fetch_offset,
                    each.partition_max_bytes,
                )
                for each in topic.partitions
            ],
        )
        for topic in sent.topics
    ]


@pytest.mark.parametrize("version", ALL_VERSIONS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_a_request_that_ends_before_its_last_topic_is_refused(version, data):
    sent = data.draw(requests(FETCH, version, TYPES).filter(lambda request: request.topics))
    whole = pack_request(FETCH, version, sent)
    fixed = len(pack_request(FETCH, version, empty_of(sent, version)))
    # What follows the forgotten topics (a rack, tagged fields) is of no use here, and not read.
    size = data.draw(st.integers(0, len(whole) - fixed))
    with pytest.raises(ProtocolError):
        read(whole[:size], version)


def empty_of(sent, version):
    """The same request, with nothing in it that comes before the rack."""
    changes = {"topics": ()} | ({"forgotten_topics_data": ()} if version >= SESSIONS_FROM else {})
    return type(sent)(**{name: getattr(sent, name) for name in sent.__slots__} | changes)


partitions = st.builds(
    PartitionData,
    st.integers(0, 2**31 - 1),
    st.sampled_from([ErrorCode.none, ErrorCode.offset_out_of_range]),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.none() | st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=3),
)
answers = st.lists(
    st.tuples(
        st.text("abc", min_size=1),
        st.integers(1, 2**64),
        st.lists(st.tuples(partitions, st.binary(max_size=200)), max_size=3),
    ),
    max_size=3,
)


def pack(version, topics, *, error_code=0, session_id=0, correlation_id=9):
    """The chunks of an answer; payloads are handed over as memoryviews, as if they lay in files."""
    response = FetchResponse(version, correlation_id)
    response.begin(error_code, session_id, len(topics))
    for name, contents in topics:
        response.begin_topic(name, len(contents))
        for data, payload in contents:
            response.add_partition(data._replace(records_bytes=len(payload)), memoryview(payload))
        response.end_topic()
    return response.finish()


@pytest.mark.parametrize("version", ALL_VERSIONS)
@given(topics=answers, session_id=st.integers(0, 2**31 - 1))
@settings(max_examples=12, deadline=None)
def test_an_answer_that_we_packed_is_read_by_kio(version, topics, session_id):
    named = [(UUID(int=id_) if version >= TOPIC_IDS_FROM else name, parts) for name, id_, parts in topics]
    packed = b"".join(pack(version, named, session_id=session_id))
    assert struct.unpack_from(">ii", packed) == (len(packed) - 4, 9)
    _, entity = read_response(FETCH, version, packed[4:])
    if version >= SESSIONS_FROM:
        assert (entity.session_id, entity.error_code) == (session_id, ErrorCode.none)
    assert [name_of(topic) for topic in entity.responses] == [name for name, _ in named]
    for topic, (_, parts) in zip(entity.responses, named, strict=True):
        assert [fields(each, version) for each in topic.partitions] == [
            expected(data, payload, version) for data, payload in parts
        ]


def fields(partition, version):
    """What kio found, in our order."""
    aborted = partition.aborted_transactions
    return (
        partition.partition_index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset if version >= 5 else None,
        None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted],
        partition.records or b"",
    )


def expected(data, payload, version):
    start = data.start_offset if version >= 5 else None
    return (*data[:4], start, data.aborted, payload)


@pytest.mark.parametrize("version", [SESSIONS_FROM, FLEXIBLE_FROM, VERSIONS[1]])
def test_an_error_of_the_session_is_told(version):
    packed = b"".join(pack(version, [], error_code=ErrorCode.fetch_session_id_not_found))
    _, entity = read_response(FETCH, version, packed[4:])
    assert entity.error_code is ErrorCode.fetch_session_id_not_found


def test_payloads_are_handed_on_as_they_were_given():
    payload = memoryview(b"records")
    data = PartitionData(0, 0, 1, 1, 0, None, len(payload))
    response = FetchResponse(12, 1)
    response.begin(0, 0, 1)
    response.begin_topic("t", 1)
    response.add_partition(data, payload)
    response.end_topic()
    chunks = response.finish()
    assert chunks[1] is payload
    assert [type(chunk) for chunk in chunks] == [bytes, memoryview, bytes]
