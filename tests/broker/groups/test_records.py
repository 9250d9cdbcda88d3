"""The records of `__consumer_offsets`: Kafka's formats, and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.members import read_subscription, read_subscriptions
from headrace.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    StoredGroup,
    StoredMember,
    UnknownRecord,
    read_group,
    read_key,
    read_offset,
    write_group,
    write_group_key,
    write_offset,
    write_offset_key,
)
from headrace.broker.record_fields import TruncatedRecord
from tests.broker.groups.harness import subscription

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
i32s = st.integers(-(2**31), 2**31 - 1)
timeouts = st.integers(0, 2**31 - 1)
i64s = st.integers(-(2**63), 2**63 - 1)
times = st.integers(0, 2**63 - 1)
blobs = st.binary(max_size=20)

offsets = st.builds(
    CommittedOffset,
    offset=i64s,
    leader_epoch=i32s,
    metadata=texts,
    committed_at_ms=times,
    expires_at_ms=st.just(-1),
)
members = st.builds(
    StoredMember,
    member_id=texts,
    instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout_ms=timeouts,
    session_timeout_ms=timeouts,
    subscription=blobs,
    assignment=blobs,
)
groups = st.builds(
    StoredGroup,
    protocol_type=texts,
    generation=i32s,
    protocol=st.none() | texts,
    leader=st.none() | texts,
    since_ms=times,
    members=st.lists(members, max_size=3).map(tuple),
)


def test_the_key_of_an_offset_has_kafkas_format():
    key = bytes.fromhex("0001 0001 67 0005 746f706963 00000007")
    assert write_offset_key(OffsetKey("g", "topic", 7)) == key


def test_the_key_of_a_group_has_kafkas_format():
    assert write_group_key("group") == bytes.fromhex("0002 0005 67726f7570")


def test_the_value_of_an_offset_has_kafkas_format():
    committed = CommittedOffset(offset=258, leader_epoch=3, metadata="m", committed_at_ms=1_000)
    value = bytes.fromhex("0003 0000000000000102 00000003 0001 6d 00000000000003e8")
    assert write_offset(committed) == value


def test_the_value_of_a_group_has_kafkas_format():
    member = StoredMember(
        member_id="m", instance_id=None, client_id="c", client_host="/h", rebalance_timeout_ms=2,
        session_timeout_ms=1, subscription=b"\x01", assignment=b"",
    )  # fmt: skip
    group = StoredGroup(
        protocol_type="consumer", generation=5, protocol="range", leader="m", since_ms=9, members=(member,)
    )
    assert write_group(group) == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 6d 0000000000000009 00000001"
        "0001 6d ffff 0001 63 0002 2f68 00000002 00000001 00000001 01 00000000"
    )


@given(texts, texts, i32s)
def test_a_key_of_an_offset_round_trips(group_id, topic, partition):
    key = OffsetKey(group_id, topic, partition)
    assert read_key(write_offset_key(key)) == key


@given(texts)
def test_a_key_of_a_group_round_trips(group_id):
    assert read_key(write_group_key(group_id)) == group_id


@given(offsets)
def test_an_offset_round_trips(committed):
    assert read_offset(write_offset(committed)) == committed


@given(offsets, times)
def test_an_offset_with_an_expiry_time_round_trips_without_its_leader_epoch(committed, expires_at_ms):
    expiring = committed._replace(expires_at_ms=expires_at_ms, leader_epoch=-1)
    assert read_offset(write_offset(expiring)) == expiring


@given(groups)
def test_a_group_round_trips(group):
    assert read_group(write_group(group)) == group


@given(offsets, st.data())
def test_a_truncated_offset_is_detected(committed, data):
    whole = write_offset(committed)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(TruncatedRecord):
        read_offset(whole[:cut])


@given(groups, st.data())
def test_a_truncated_group_is_detected(group, data):
    whole = write_group(group)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(TruncatedRecord):
        read_group(whole[:cut])


def test_keys_of_other_group_types_are_skipped():
    assert read_key(bytes.fromhex("0003 0001 67")) is None


def test_an_offset_of_version_4_is_read():
    value = bytes.fromhex("0004 0000000000000102 00000003 02 6d 00000000000003e8 00")
    assert read_offset(value) == CommittedOffset(
        offset=258, leader_epoch=3, metadata="m", committed_at_ms=1_000
    )


def test_a_group_of_version_4_is_read_with_its_tagged_fields():
    value = bytes.fromhex(
        "0004 09 636f6e73756d6572 00000005 06 72616e6765 02 6d 0000000000000009 02"
        "02 6d 00 02 63 03 2f68 00000002 00000001 02 01 01 01 07 02 aabb 00"
    )
    group = read_group(value)
    assert (group.generation, group.protocol, group.leader) == (5, "range", "m")
    assert [(m.member_id, m.instance_id, m.subscription, m.assignment) for m in group.members] == [
        ("m", None, b"\x01", b"")
    ]


def test_a_group_of_version_0_has_one_timeout_for_both():
    value = bytes.fromhex(
        "0000 0000 00000001 ffff ffff 00000001 0001 6d 0000 0000 00000063 00000000 00000000"
    )
    (member,) = read_group(value).members
    assert member.rebalance_timeout_ms == member.session_timeout_ms == 99


def test_an_unknown_version_is_rejected_with_advice():
    with pytest.raises(UnknownRecord, match="newer broker"):
        read_offset(bytes.fromhex("0005"))


@given(st.lists(texts, max_size=5))
def test_the_topics_of_a_subscription_are_read(topics):
    names = [name for name in topics if name.isascii()]
    assert read_subscription(subscription(*names)) == names


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_not_a_subscription(data):
    topics = read_subscription(data)
    assert topics is None or sum(len(name.encode()) + 2 for name in topics) <= len(data) - 6


def test_one_unreadable_subscription_makes_the_topics_of_a_group_unknown():
    assert read_subscriptions([subscription("a"), subscription("b", "a")]) == {"a", "b"}
    assert read_subscriptions([subscription("a"), b"\x00"]) is None
    assert read_subscriptions([]) == frozenset()


def test_an_impossible_count_allocates_nothing():
    assert read_subscription(bytes.fromhex("0000 7fffffff 0000")) is None
