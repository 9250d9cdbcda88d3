"""ACLs decide as those of Apache Kafka do."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.security.acls import (
    IMPLIED_BY,
    OPERATIONS,
    Access,
    Acl,
    AclFilter,
    Authorizer,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
TOPIC = ResourceType.TOPIC
ORDERS = Acl(TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", READ, Permission.ALLOW)
ANY = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


def allows(
    *acls: Acl, user: str = "alice", host: str = "10.0.0.1", operation: Operation = READ, name: str = "orders"
) -> bool:
    authorizer = Authorizer()
    authorizer.add(acls)
    return authorizer.allows(f"User:{user}", host, operation, TOPIC, name)


def test_nothing_is_allowed_without_an_acl() -> None:
    assert not allows()


@pytest.mark.parametrize(
    ("changes", "request_", "is_allowed"),
    [
        ({}, {}, True),
        ({}, {"user": "bob"}, False),
        ({}, {"operation": WRITE}, False),
        ({}, {"operation": DESCRIBE}, True),
        ({}, {"operation": Operation.DESCRIBE_CONFIGS}, False),
        ({}, {"name": "orders2"}, False),
        ({"name": "*"}, {"name": "anything"}, True),
        ({"name": "ord", "pattern_type": PatternType.PREFIXED}, {}, True),
        ({"name": "ord", "pattern_type": PatternType.PREFIXED}, {"name": "or"}, False),
        ({"name": "*", "pattern_type": PatternType.PREFIXED}, {}, False),
        ({"principal": "User:*"}, {"user": "bob"}, True),
        ({"host": "10.0.0.1"}, {}, True),
        ({"host": "10.0.0.2"}, {}, False),
        ({"operation": ALL}, {"operation": WRITE}, True),
        ({"operation": Operation.ALTER_CONFIGS}, {"operation": Operation.DESCRIBE_CONFIGS}, True),
        ({"permission": Permission.DENY}, {}, False),
        ({"resource_type": ResourceType.GROUP}, {}, False),
    ],
)
def test_one_acl_decides(changes: dict, request_: dict, is_allowed: bool) -> None:
    assert allows(replace(ORDERS, **changes), **request_) is is_allowed


@pytest.mark.parametrize(
    ("changes", "is_allowed"),
    [
        ({}, False),
        ({"operation": ALL}, False),
        ({"operation": DESCRIBE}, True),
        ({"name": "*"}, False),
        ({"name": "o", "pattern_type": PatternType.PREFIXED}, False),
        ({"principal": "User:*"}, False),
        ({"principal": "User:bob"}, True),
        ({"host": "10.0.0.1"}, False),
        ({"host": "10.0.0.9"}, True),
    ],
)
def test_a_denial_wins_over_every_permission(changes: dict, is_allowed: bool) -> None:
    assert allows(ORDERS, replace(ORDERS, permission=Permission.DENY, **changes)) is is_allowed


def test_a_denied_read_leaves_what_other_rights_allow() -> None:
    denied = replace(ORDERS, permission=Permission.DENY)
    written = replace(ORDERS, operation=WRITE)
    assert allows(denied, written, operation=DESCRIBE)
    assert not allows(denied, written, operation=READ)


def test_a_super_user_needs_no_acl_and_cannot_be_denied() -> None:
    authorizer = Authorizer(frozenset({"User:root"}))
    authorizer.add([replace(ORDERS, principal="User:*", permission=Permission.DENY)])
    assert authorizer.allows("User:root", "10.0.0.1", READ, TOPIC, "orders")
    assert authorizer.allows_any("User:root", "10.0.0.1", WRITE, TOPIC)


names = st.sampled_from(["*", "o", "or", "orders", "x"])
acls = st.builds(
    Acl,
    st.just(TOPIC),
    names,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
    st.sampled_from([READ, WRITE, DESCRIBE, ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


@given(st.lists(acls, max_size=6), st.sampled_from([READ, WRITE, DESCRIBE]), names)
def test_decisions_are_those_of_the_plain_rules(entries: list[Acl], operation: Operation, name: str) -> None:
    about = [
        acl
        for acl in entries
        if acl.principal in ("User:alice", "User:*")
        and acl.host in ("*", "10.0.0.1")
        and (
            name.startswith(acl.name) if acl.pattern_type is PatternType.PREFIXED else acl.name in ("*", name)
        )
    ]
    denied = any(a.permission is Permission.DENY and a.operation in (operation, ALL) for a in about)
    granting = {operation, ALL} | IMPLIED_BY.get(operation, frozenset())
    granted = any(a.permission is Permission.ALLOW and a.operation in granting for a in about)
    assert allows(*entries, operation=operation, name=name) is (granted and not denied)


@given(st.lists(acls, max_size=5))
def test_any_topic_may_be_written_if_there_is_a_name_that_may(entries: list[Acl]) -> None:
    authorizer = Authorizer()
    authorizer.add(entries)
    # Names that no entry singles out stand for all others.
    candidates = ["o", "or", "orders", "x", "orx", "o-new", "or-new", "orders-new", "x-new", "y"]
    found = any(authorizer.allows("User:alice", "10.0.0.1", WRITE, TOPIC, name) for name in candidates)
    if found:
        assert authorizer.allows_any("User:alice", "10.0.0.1", WRITE, TOPIC)


@pytest.mark.parametrize(
    ("denied", "is_allowed"),
    [
        ({"name": "*"}, False),
        ({"name": "team-a-"}, False),
        ({"name": "team-"}, False),
        ({"name": "team-a-x"}, True),
        ({"name": "team-a-", "pattern_type": PatternType.LITERAL}, True),
    ],
)
def test_a_prefix_that_is_denied_as_a_whole_allows_no_topic(denied: dict, is_allowed: bool) -> None:
    prefix = replace(ORDERS, name="team-a-", pattern_type=PatternType.PREFIXED, operation=WRITE)
    pattern = PatternType.LITERAL if denied["name"] == "*" else PatternType.PREFIXED
    authorizer = Authorizer()
    authorizer.add(
        [prefix, replace(prefix, **({"pattern_type": pattern} | denied), permission=Permission.DENY)]
    )
    assert authorizer.allows_any("User:alice", "h", WRITE, TOPIC) is is_allowed


def test_a_remembered_decision_ends_with_the_acl() -> None:
    authorizer = Authorizer()
    access = Access(authorizer, "User:alice", "10.0.0.1")
    assert not access.allows(READ, TOPIC, "orders")
    authorizer.add([ORDERS])
    assert access.allows(READ, TOPIC, "orders")
    authorizer.remove([ORDERS])
    assert not access.allows(READ, TOPIC, "orders")


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({}, True),
        ({"name": "orders"}, True),
        ({"name": "ord"}, False),
        ({"name": "orders", "pattern_type": PatternType.MATCH}, True),
        ({"name": "orders", "pattern_type": PatternType.PREFIXED}, False),
        ({"principal": "User:bob"}, False),
        ({"host": "10.0.0.1"}, False),
        ({"operation": WRITE}, False),
        ({"permission": Permission.DENY}, False),
        ({"resource_type": ResourceType.GROUP}, False),
    ],
)
def test_a_filter_finds_what_it_names(changes: dict, is_found: bool) -> None:
    assert ANY._replace(**changes).matches(ORDERS) is is_found


def test_a_matching_filter_finds_prefixes_and_wildcards_too() -> None:
    wanted = ANY._replace(name="orders", pattern_type=PatternType.MATCH)
    assert wanted.matches(replace(ORDERS, name="ord", pattern_type=PatternType.PREFIXED))
    assert wanted.matches(replace(ORDERS, name="*"))
    assert not wanted.matches(replace(ORDERS, name="ord"))


def test_every_operation_of_a_resource_has_one_bit() -> None:
    assert sum(1 << operation for operation in OPERATIONS[ResourceType.GROUP]) == 0b110101001000
