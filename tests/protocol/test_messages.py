"""Messages as plain data: one body for every version of an API, and headers that believe nothing."""

from __future__ import annotations

import dataclasses
import struct
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from headrace.broker.apis import APIS
from headrace.protocol.errors import ProtocolError
from headrace.protocol.requests import is_flexible, read_request_header
from headrace.protocol.responses import write_response
from tests.broker.wire_client import read_response
from tests.protocol.entities import build, requests

LIST_OFFSETS, METADATA, JOIN_GROUP, API_VERSIONS, CREATE_TOPICS, DESCRIBE_CONFIGS = 2, 3, 11, 18, 19, 32
EVERY_VERSION = [(key, version) for key, api in APIS.items() for version in range(api.low, api.high + 1)]


def versions_of(api_key):
    return range(APIS[api_key].low, APIS[api_key].high + 1)


def plain(value):
    """An entity as a handler would write it: dictionaries, lists, milliseconds and numbers."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    return int(value) if isinstance(value, ErrorCode) else value


@given(data=st.data(), api=st.sampled_from(EVERY_VERSION))
@settings(max_examples=150, deadline=None)
def test_plain_data_becomes_the_entity_that_it_describes(data, api):
    entity = data.draw(requests(*api))
    extended = plain(entity) | {"a field of a later version": 1}
    assert build(load_request_schema(*api), extended) == entity


METADATA_BODY = {
    "error_code": 0,
    "brokers": [{"node_id": 1, "host": "here", "port": 9092, "rack": None}],
    "cluster_id": "cluster",
    "controller_id": 1,
    "topics": [
        {
            "error_code": 3,
            "name": "orders",
            "topic_id": UUID(int=5),
            "is_internal": False,
            "partitions": [
                {
                    "error_code": 0,
                    "partition_index": 2,
                    "leader_id": 1,
                    "leader_epoch": 0,
                    "replica_nodes": [1],
                    "isr_nodes": [1],
                    "offline_replicas": [],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("version", versions_of(METADATA))
def test_metadata_of_every_version_is_made_from_one_body(version):
    frame = write_response(METADATA, version, 77, METADATA_BODY)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    answered, entity = read_response(METADATA, version, frame[4:])
    assert answered == 77
    (topic,) = entity.topics
    assert (topic.name, topic.error_code) == ("orders", ErrorCode.unknown_topic_or_partition)
    (partition,) = topic.partitions
    assert (partition.partition_index, partition.replica_nodes) == (2, (1,))
    if version >= 10:
        assert topic.topic_id == UUID(int=5)
    if version >= 3:
        assert entity.throttle_time == timedelta(0)


@pytest.mark.parametrize("version", versions_of(LIST_OFFSETS))
def test_list_offsets_of_every_version_is_made_from_one_body(version):
    partition = {"partition_index": 1, "error_code": 0, "timestamp": 5, "offset": 7, "leader_epoch": 0}
    frame = write_response(LIST_OFFSETS, version, 1, {"topics": [{"name": "t", "partitions": [partition]}]})
    _, entity = read_response(LIST_OFFSETS, version, frame[4:])
    (found,) = entity.topics[0].partitions
    assert (found.partition_index, found.timestamp, found.offset) == (1, 5, 7)


@pytest.mark.parametrize("version", versions_of(JOIN_GROUP))
def test_join_group_of_every_version_is_made_from_one_body(version):
    member = {"member_id": "m", "group_instance_id": None, "metadata": b"\0\1"}
    body = {
        "error_code": 79,
        "generation_id": 4,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": "m",
        "skip_assignment": False,
        "member_id": "m",
        "members": [member],
    }
    _, entity = read_response(JOIN_GROUP, version, write_response(JOIN_GROUP, version, 1, body)[4:])
    assert entity.error_code is ErrorCode.member_id_required
    assert (entity.generation_id, entity.members[0].metadata) == (4, b"\0\1")


@pytest.mark.parametrize("version", versions_of(API_VERSIONS))
def test_the_answer_to_api_versions_never_has_a_tagged_header(version):
    body = {"error_code": 0, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}]}
    frame = write_response(API_VERSIONS, version, 0x01020304, body)
    assert frame[4:10] == b"\1\2\3\4\0\0", "the error code follows the correlation id at once"
    _, entity = read_response(API_VERSIONS, version, frame[4:])
    assert entity.api_keys[0].max_version == 4


def test_a_field_that_the_body_must_have_is_named_when_it_is_missing():
    with pytest.raises(KeyError, match="needs the field 'topics'"):
        build(load_response_schema(LIST_OFFSETS, 6), {})


def test_null_stays_null():
    schema = load_request_schema(METADATA, 11)
    fields = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    assert build(schema, fields | {"topics": None}).topics is None


def request(api_key=METADATA, version=1, client=b"me", tags=b"", body=b"body"):
    size = -1 if client is None else len(client)
    return memoryview(struct.pack(">hhih", api_key, version, 5, size) + (client or b"") + tags + body)


@pytest.mark.parametrize(
    ("client", "name"), [(b"me", "me"), (b"", ""), (None, ""), (b"\xff", "\N{REPLACEMENT CHARACTER}")]
)
def test_a_request_header_names_its_client(client, name):
    frame = request(client=client)
    header = read_request_header(frame, is_flexible)
    assert (header.api_key, header.version, header.correlation_id, header.client_id) == (METADATA, 1, 5, name)
    assert frame[header.body :] == b"body"


def test_tagged_fields_of_a_flexible_header_are_passed_over():
    frame = request(version=9, tags=b"\1\0\3abc")
    assert frame[read_request_header(frame, is_flexible).body :] == b"body"


@pytest.mark.parametrize("frame", [b"", bytes(9), struct.pack(">hhih", 3, 1, 5, 100) + b"short"])
def test_a_header_that_is_cut_off_is_refused(frame):
    with pytest.raises(ProtocolError):
        read_request_header(memoryview(frame), is_flexible)
