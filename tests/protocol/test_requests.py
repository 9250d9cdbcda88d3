"""Requests as kio writes them come back as they were, and no claim of theirs is believed unseen."""

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema

from headrace.broker.apis import APIS, FETCH, PRODUCE
from headrace.protocol.errors import ProtocolError
from headrace.protocol.requests import is_flexible, read_request, read_request_header, request_steps
from headrace.protocol.wire import MAX_ITEMS, pack_unsigned_varint
from tests.broker.wire_client import pack_request
from tests.protocol.entities import requests

METADATA, OFFSET_FETCH, DESCRIBE_GROUPS, LIST_TRANSACTIONS = 3, 9, 15, 66
READ_BY_SCHEMA = [
    (api_key, version)
    for api_key, api in APIS.items()
    if api_key not in (PRODUCE, FETCH)
    for version in range(api.low, api.high + 1)
]


def read(payload: bytes) -> Any:
    """The body of a request."""
    frame = memoryview(payload)
    return read_request(frame, read_request_header(frame, is_flexible))


def read_in_steps(payload: bytes) -> Any:
    """The body of a request, read in steps."""
    frame = memoryview(payload)
    steps = request_steps(frame, read_request_header(frame, is_flexible))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def header(api_key: int, version: int) -> bytes:
    """The header of a request without a client id; of a flexible version, without tagged fields."""
    return struct.pack(">hhih", api_key, version, 1, -1) + (b"\0" if is_flexible(api_key, version) else b"")


@given(data=st.data(), api=st.sampled_from(READ_BY_SCHEMA))
@settings(max_examples=400, deadline=None)
def test_a_request_comes_back_as_it_was_written(data: st.DataObject, api: tuple[int, int]) -> None:
    api_key, version = api
    request = data.draw(requests(api_key, version))
    assert read(pack_request(api_key, version, request)) == request
    assert read_in_steps(pack_request(api_key, version, request)) == request


@given(data=st.data(), api=st.sampled_from(READ_BY_SCHEMA))
@settings(max_examples=200, deadline=None)
def test_a_request_that_is_cut_short_is_refused(data: st.DataObject, api: tuple[int, int]) -> None:
    api_key, version = api
    payload = pack_request(api_key, version, data.draw(requests(api_key, version)))
    start = len(header(api_key, version))
    if len(payload) > start:
        cut = payload[: data.draw(st.integers(start, len(payload) - 1))]
        for reader in (read, read_in_steps):
            with pytest.raises(ProtocolError):
                reader(cut)


@pytest.mark.parametrize("count", [2**31, 2**32 - 1, 1_000_000])
def test_an_array_that_claims_more_items_than_there_are_bytes_is_refused(count: int) -> None:
    with pytest.raises(ProtocolError, match="items in"):
        read(header(METADATA, 12) + pack_unsigned_varint(count) + bytes(20))


def test_an_array_of_the_older_encoding_is_held_against_the_bytes_too() -> None:
    with pytest.raises(ProtocolError, match="items in"):
        read(header(METADATA, 1) + struct.pack(">i", 2**31 - 1) + bytes(20))


def test_more_items_than_any_client_sends_are_refused_before_they_are_read() -> None:
    names = pack_unsigned_varint(MAX_ITEMS + 2) + b"\1" * (MAX_ITEMS + 1)
    with pytest.raises(ProtocolError, match="more than"):
        read(header(DESCRIBE_GROUPS, 5) + names + b"\0\0")


def test_items_of_all_arrays_count_together() -> None:
    topic = b"\2t" + pack_unsigned_varint(2001) + bytes(4 * 2000) + b"\0"
    topics = pack_unsigned_varint(101) + topic * 100
    with pytest.raises(ProtocolError, match="more than"):
        read(header(OFFSET_FETCH, 7) + b"\2g" + topics + b"\0\0")


def test_tagged_fields_that_nobody_knows_are_passed_over() -> None:
    tags = b"\2" + b"\x05\x03abc" + b"\x09\x00"
    assert read(header(METADATA, 12) + b"\0\0\0" + tags).topics is None


def test_very_many_tagged_fields_are_refused() -> None:
    with pytest.raises(ProtocolError, match="tagged fields"):
        read(header(METADATA, 12) + b"\0\0\0" + pack_unsigned_varint(5000) + b"\1\0" * 5000)


def test_a_null_where_there_must_be_a_value_is_refused() -> None:
    with pytest.raises(ProtocolError, match="groups is null"):
        read(header(DESCRIBE_GROUPS, 5) + b"\0\0\0")


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        read(header(DESCRIBE_GROUPS, 5) + b"\2\3\xff\xfe\0\0")


def test_a_duration_beyond_every_calendar_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a duration of"):
        read(header(8, 2) + b"\0\1g\0\0\0\0\0\1m" + struct.pack(">q", 2**63 - 1) + bytes(4))


def test_bytes_after_the_last_field_are_passed_over() -> None:
    assert read(header(METADATA, 1) + struct.pack(">i", -1) + b"more").topics is None


def test_kio_still_makes_this_reader_necessary() -> None:
    """When kio passes over tagged fields that it does not know, see whether it can read requests again."""
    from kio.serial import entity_reader

    body = b"\0\0\0" + b"\1\x05\x03abc"
    with pytest.raises(KeyError):
        entity_reader(load_request_schema(METADATA, 12))(body, 0)
