"""Responses written in steps: byte for byte what kio writes, whatever the API and version."""

from __future__ import annotations

import dataclasses
import io
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from headrace.broker.apis import APIS
from headrace.protocol.errors import ProtocolError
from headrace.protocol.requests import API_VERSIONS
from headrace.protocol.responses import response_steps, write_response
from tests.protocol.entities import responses

LIST_GROUPS = 16
PACKED_BY_HAND = {0, 1, 78, 79}
"""Produce, Fetch and their counterparts of share groups."""
WRITTEN_BY_SCHEMA = [
    (key, version)
    for key, api in APIS.items()
    if key not in PACKED_BY_HAND
    for version in range(api.low, api.high + 1)
]


def plain(value):
    """An entity as a handler would write it."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return int(value) if isinstance(value, ErrorCode) else value


@given(data=st.data(), api=st.sampled_from(WRITTEN_BY_SCHEMA))
@settings(max_examples=300, deadline=None)
def test_a_response_has_the_bytes_that_kio_writes(data, api):
    api_key, version = api
    entity = data.draw(responses(api_key, version))
    schema = load_response_schema(api_key, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, entity)
    header = 9 if schema.__flexible__ and api_key != API_VERSIONS else 8
    assert write_response(api_key, version, 1, plain(entity))[header:] == buffer.getvalue()


def test_a_response_with_tagged_fields_has_the_bytes_that_kio_writes():
    schema = load_response_schema(API_VERSIONS, 4)
    body = {"error_code": 0, "api_keys": [], "finalized_features_epoch": 5}
    (features,) = [field for field in dataclasses.fields(schema) if field.name == "supported_features"]
    assert features.metadata["tag"] == 0
    feature = {"name": "share.version", "min_version": 0, "max_version": 1}
    frame = write_response(API_VERSIONS, 4, 1, body | {"supported_features": [feature]})
    assert frame.endswith(
        b"\x02\x00\x14\x02\x0eshare.version\x00\x00\x00\x01\x00\x01\x08" + (5).to_bytes(8, "big")
    )


def test_a_missing_field_is_named():
    with pytest.raises(KeyError, match="needs the field 'topics'"):
        write_response(2, 6, 1, {})


def groups(count, name="g"):
    listed = {"group_id": name, "protocol_type": "consumer", "group_state": "Empty", "group_type": "classic"}
    return {"error_code": 0, "groups": [listed] * count}


def test_a_large_response_is_written_in_many_steps():
    assert len(list(response_steps(LIST_GROUPS, 5, 1, groups(10_000)))) > 300


def test_a_response_beyond_the_limit_is_refused_while_it_is_written():
    with pytest.raises(ProtocolError, match="ask for less"):
        write_response(LIST_GROUPS, 5, 1, groups(40_000, name="x" * 1000))
