"""Every API with all the rights that it needs, and with each missing: principal × operation × resource."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from headrace.broker.apis import APIS
from headrace.broker.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.broker.security.requirements import DENIED, FURTHER, PUBLIC, REQUIRED
from headrace.protocol.requests import is_tuple, nested_schema
from tests.broker.processes import wait_until
from tests.broker.security.brokers import ADMIN, PASSWORD, create_admin, secure_broker
from tests.broker.security.test_sasl import choose, log_in, send_token
from tests.broker.wire_client import FETCH, METADATA, PRODUCE, WireClient, batch_of

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE
NAMES = {TOPIC: "orders", GROUP: "shop", CLUSTER: CLUSTER_NAME, TRANSACTION: "txn"}
CREATE_ACLS, DELETE_ACLS, ALTER_USERS, OFFSET_COMMIT = 30, 31, 51, 8
DESCRIBE_GROUPS, LIST_GROUPS, LIST_TRANSACTIONS, INIT_PRODUCER_ID = 15, 16, 66, 22
MARKERS = [
    {
        "producer_id": 1,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": "orders", "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
]

NOTHING: Mapping[Any, Any] = MappingProxyType({})

Right = tuple[Operation, ResourceType, str]


class Case(NamedTuple):
    """A request, and the types of resources to which it needs the right of the table."""

    api_key: int
    version: int
    needs: tuple[ResourceType, ...]
    fields: Mapping[str, Any] = NOTHING
    names: Mapping[ResourceType, str] = NOTHING
    """Resources that are not those of `NAMES`."""

    @property
    def rights(self) -> list[Right]:
        names = NAMES | self.names
        return [(REQUIRED[self.api_key][kind], kind, names[kind]) for kind in self.needs]


QUEUE = {"group_id": "queue", "acknowledgement_batches": (), "forgotten_topics_data": ()}
SHARE = {"member_id": "m" * 22, "member_epoch": 0}
CASES = [
    Case(PRODUCE, 9, (TOPIC,), {"transactional_id": None, "records": batch_of(b"tea"), "acks": -1}),
    Case(
        PRODUCE,
        9,
        (TRANSACTION, TOPIC),
        {
            "transactional_id": "txn",
            "acks": -1,
            "records": lambda admin: transactional_batch(admin),
        },
    ),
    Case(FETCH, 12, (TOPIC,), {"session_epoch": -1, "current_leader_epoch": -1, "replica_id": -1}),
    Case(FETCH, 16, (TOPIC,), {"session_epoch": -1, "current_leader_epoch": -1, "replica_id": -1}),
    Case(2, 6, (TOPIC,), {"timestamp": -1, "current_leader_epoch": -1}),
    Case(METADATA, 9, (TOPIC,)),
    Case(
        OFFSET_COMMIT,
        9,
        (GROUP, TOPIC),
        {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None},
    ),
    Case(
        OFFSET_COMMIT,
        10,
        (GROUP, TOPIC),
        {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None},
    ),
    *(Case(9, version, (GROUP, TOPIC), {"member_id": None, "member_epoch": -1}) for version in (1, 5, 9, 10)),
    *(Case(10, version, (GROUP,), {"key_type": 0}) for version in (0, 4)),
    *(
        Case(10, version, (TRANSACTION,), {"key_type": 1, "key": "txn", "coordinator_keys": ["txn"]})
        for version in (1, 4)
    ),
    Case(10, 6, (CLUSTER,), {"key_type": 2, "coordinator_keys": ["shop:0:0"]}),
    Case(11, 5, (GROUP,), {"protocol_type": ""}),
    Case(12, 4, (GROUP,)),
    *(Case(13, version, (GROUP,)) for version in (1, 5)),
    Case(14, 5, (GROUP,)),
    *(Case(DESCRIBE_GROUPS, version, (GROUP,)) for version in (0, 6)),
    Case(19, 7, (CLUSTER,), {"validate_only": True, "assignments": (), "configs": (), "num_partitions": 1}),
    Case(19, 7, (TOPIC,), {"validate_only": True, "assignments": (), "configs": (), "num_partitions": 1}),
    Case(21, 2, (TOPIC,), {"offset": 0}),
    Case(22, 4, (TRANSACTION,), {"producer_id": -1, "producer_epoch": -1}),
    Case(22, 4, (CLUSTER,), {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}),
    Case(23, 4, (TOPIC,), {"current_leader_epoch": -1}),
    Case(24, 3, (TRANSACTION, TOPIC)),
    Case(24, 4, (CLUSTER,), {"verify_only": True}),
    Case(25, 3, (TRANSACTION, GROUP)),
    Case(26, 3, (TRANSACTION,)),
    Case(27, 1, (CLUSTER,), {"markers": MARKERS}),
    Case(
        28, 3, (TRANSACTION, GROUP, TOPIC), {"generation_id": -1, "member_id": "", "group_instance_id": None}
    ),
    Case(
        29,
        3,
        (CLUSTER,),
        {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
    ),
    Case(
        30,
        3,
        (CLUSTER,),
        {
            "resource_type": 2,
            "resource_pattern_type": 3,
            "operation": 3,
            "permission_type": 3,
            "principal": "User:bob",
        },
    ),
    Case(
        31,
        3,
        (CLUSTER,),
        {"resource_type_filter": 3, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
    ),
    *(
        Case(32, 4, (kind,), {"resource_type": number, "resource_name": name, "configuration_keys": None})
        for kind, number, name in ((TOPIC, 2, "orders"), (GROUP, 32, "shop"), (CLUSTER, 4, "1"))
    ),
    *(
        Case(
            33,
            2,
            (kind,),
            {"resource_type": number, "resource_name": name, "configs": (), "validate_only": True},
        )
        for kind, number, name in ((TOPIC, 2, "orders"), (GROUP, 32, "shop"), (CLUSTER, 4, "1"))
    ),
    *(
        Case(
            44,
            1,
            (kind,),
            {"resource_type": number, "resource_name": name, "configs": (), "validate_only": True},
        )
        for kind, number, name in ((TOPIC, 2, "orders"), (GROUP, 32, "shop"), (CLUSTER, 4, "1"))
    ),
    Case(35, 4, (CLUSTER,), {"topics": None}),
    Case(37, 3, (TOPIC,), {"validate_only": True, "assignments": None, "count": 2}),
    Case(42, 2, (GROUP,)),
    Case(47, 0, (GROUP, TOPIC), {"group_id": lambda admin: group_with_offset(admin)}),
    Case(48, 1, (CLUSTER,), {"components": ()}),
    Case(49, 1, (CLUSTER,), {"entity_type": "user", "key": "request_percentage", "remove": True}),
    Case(50, 0, (CLUSTER,)),
    Case(ALTER_USERS, 0, (CLUSTER,), {"upsertions": ()}),
    Case(61, 0, (TOPIC,)),
    Case(65, 0, (TRANSACTION,), {"transactional_ids": ["absent"]}, {TRANSACTION: "absent"}),
    Case(74, 1, (CLUSTER,), {"resource_types": (2,)}),
    Case(75, 0, (TOPIC,), {"cursor": None, "response_partition_limit": 10}),
    Case(76, 1, (GROUP, TOPIC), SHARE | {"member_epoch": -1}),
    Case(77, 1, (GROUP,)),
    Case(78, 1, (GROUP, TOPIC), SHARE | QUEUE, {GROUP: "queue"}),
    Case(79, 1, (GROUP,), SHARE),
    *(Case(key, 0, (GROUP, TOPIC), QUEUE, {GROUP: "queue"}) for key in (90, 91, 92)),
    Case(20, 6, (TOPIC,), {"name": "absent", "topic_id": None, "timeout": 10_000}, {TOPIC: "absent"}),
]


@pytest.fixture(scope="module", params=["headrace", pytest.param("apache", marks=pytest.mark.cluster)])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with ACLs: Headrace, and in the cluster suite Apache Kafka too."""
    folder = tmp_path_factory.mktemp("acls")
    if request.param == "apache":
        from tools.secured_kafka import SASL_PLAINTEXT, SecuredKafka

        authorizer = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{ADMIN}",  # its own listeners have no authentication
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.num.partitions": "1",
        }
        with SecuredKafka(folder, authorizer, users={ADMIN: PASSWORD}) as apache:
            yield apache.listeners[SASL_PLAINTEXT]
        return
    create_admin(folder / "data")
    # Members that joined for a right would keep their groups busy.
    with secure_broker(folder / "data", "SASL_PLAINTEXT", default_partitions=1) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[WireClient]:
    with WireClient(bootstrap) as client:
        log_in(client)
        create_topic(client, "orders", retention_ms="-1")  # the batches of tests are old
        upsertion = {"name": "alice", "mechanism": 1, "iterations": 4096, "salt": b"salt"}
        salted = _salted("alice-password")
        answer = client.ask(
            ALTER_USERS, 0, deletions=[], upsertions=[upsertion | {"salted_password": salted}]
        )
        assert answer.results[0].error_code is ErrorCode.none
        wait_until(lambda: can_log_in(bootstrap), "the user alice")
        place = {"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]}
        wait_until(lambda: has_coordinators(client), "the coordinators")
        wait_until(
            lambda: client.ask(91, 0, group_id="queue", topics=[place]).error_code is ErrorCode.none,
            "the share group",
        )
        yield client


def has_coordinators(admin: WireClient) -> bool:
    """Whether the coordinators are there: Apache Kafka creates their topics when they are first asked for."""
    found = [
        admin.ask(10, 4, key_type=key_type, coordinator_keys=[key]).coordinators[0].error_code
        for key_type, key in ((0, "queue"), (1, "txn"))
    ]
    return set(found) == {ErrorCode.none}


def can_log_in(bootstrap: str) -> bool:
    with WireClient(bootstrap) as client:
        choose(client)
        return bool(send_token(client, b"n,,n=alice,r=abc").error_code is ErrorCode.none)


def create_topic(admin: WireClient, name: str, **configs: str) -> None:
    """Create a topic, and return when it is known: Apache Kafka says so before."""
    admin.create_topic(name, **configs)
    wait_until(lambda: metadata(admin, name).topics[0].error_code is ErrorCode.none, f"topic {name}")


def _salted(password: str) -> bytes:
    from headrace.protocol.scram import ScramMechanism

    return ScramMechanism.SHA_256.salted_password(password, b"salt", 4096)


@pytest.fixture
def alice(bootstrap: str, admin: WireClient) -> Iterator[WireClient]:
    with WireClient(bootstrap) as client:
        assert log_in(client, "alice", "alice-password").error_code is ErrorCode.none
        yield client


def grant(admin: WireClient, *rights: Right, permission: Permission = Permission.ALLOW) -> None:
    """Let alice have these rights and no others."""
    revoke(admin)
    add(admin, *rights, permission=permission)


def revoke(admin: WireClient) -> None:
    assert admin.ask(DELETE_ACLS, 3, filters=[EVERYTHING]).filter_results[0].error_code is ErrorCode.none
    wait_until(lambda: count_acls(admin) == 0, "the ACLs to be gone")


EVERYTHING = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def count_acls(admin: WireClient) -> int:
    """The ACLs that are in force: Apache Kafka confirms a change before it is."""
    return sum(len(resource.acls) for resource in admin.ask(29, 3, **EVERYTHING).resources)


def add(
    admin: WireClient,
    *rights: Right,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> None:
    creations = [
        {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": pattern,
            "principal": "User:alice",
            "host": "*",
            "operation": operation,
            "permission_type": permission,
        }
        for operation, kind, name in rights
    ]
    before = count_acls(admin)
    answer = admin.ask(CREATE_ACLS, 3, creations=creations)
    assert all(result.error_code is ErrorCode.none for result in answer.results)
    wait_until(lambda: count_acls(admin) >= before + len(set(rights)), "the ACLs to be in force")


def fill(schema: Any, topic_id: UUID, given: Mapping[str, Any]) -> dict[str, Any]:
    """A request with one item in each array: the topic, the group or the transactional id by their names."""
    texts = {
        "group_id": "shop",
        "groups": "shop",
        "groups_names": "shop",
        "group_ids": "shop",
        "key": "shop",
        "coordinator_keys": "shop",
        "transactional_id": "txn",
        "v3_and_below_transactional_id": "txn",
        "transactional_ids": "txn",
        "client_id": "test",
    }
    hints = get_type_hints(schema)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        hint, kind = hints[field.name], field.metadata.get("kafka_type", "")
        nested = nested_schema(hint)
        if field.name in given:
            values[field.name] = given[field.name]
        elif nested is not None:
            item = fill(nested, topic_id, given)
            values[field.name] = [item] if is_tuple(hint) else item
        else:
            value = _plain(kind, texts.get(field.name, "orders"), topic_id)
            values[field.name] = [value] if is_tuple(hint) else value
    return values


def transactional_batch(admin: WireClient) -> bytes:
    """A batch of the newest producer of the transactional id."""
    producer = init_producer(admin, "txn")
    more = {"producer_epoch": producer.producer_epoch, "base_sequence": 0, "attributes": 0x10}
    return batch_of(b"tea", producer_id=producer.producer_id, **more)


def group_with_offset(admin: WireClient) -> str:
    """A group that has committed an offset: other tests delete it."""
    case = next(case for case in CASES if case.api_key == OFFSET_COMMIT)
    assert ask(admin, admin, case) == {ErrorCode.none}
    return "shop"


def init_producer(client: WireClient, transactional_id: str | None) -> Any:
    return client.ask(
        INIT_PRODUCER_ID,
        4,
        transactional_id=transactional_id,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )


def _plain(kind: str, text: str, topic_id: UUID) -> Any:
    if kind == "string":
        return text
    if kind in ("bytes", "records"):
        return b""
    return topic_id if kind == "uuid" else 0


def codes(entity: Any) -> set[ErrorCode]:
    """Every error code in a response."""
    found = {entity} if isinstance(entity, ErrorCode) else set()
    if isinstance(entity, tuple):
        return found.union(*map(codes, entity))
    if dataclasses.is_dataclass(entity):
        return found.union(*(codes(getattr(entity, field.name)) for field in dataclasses.fields(entity)))
    return found


def topic_id(admin: WireClient) -> UUID:
    wanted = [{"topic_id": None, "name": "orders"}]
    return (
        admin.ask(
            METADATA,
            12,
            topics=wanted,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        .topics[0]
        .topic_id
    )


def ask(client: WireClient, admin: WireClient, case: Case) -> set[ErrorCode]:
    schema = load_request_schema(case.api_key, case.version)
    given = {name: value(admin) if callable(value) else value for name, value in case.fields.items()}
    fields = fill(schema, topic_id(admin), given)
    return codes(client.ask(case.api_key, case.version, **fields))


def name_of(case: Case) -> str:
    return f"{APIS[case.api_key].handle.__name__}-v{case.version}-" + "-".join(
        kind.name.lower() for kind in case.needs
    )


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_request_is_allowed_with_exactly_its_rights(
    admin: WireClient, alice: WireClient, case: Case
) -> None:
    grant(admin, *case.rights)
    assert not ask(alice, admin, case) & set(DENIED.values())


@pytest.mark.parametrize(
    ("case", "missing"),
    [
        pytest.param(case, kind, id=f"{name_of(case)}-without-{kind.name.lower()}")
        for case in CASES
        for kind in case.needs
    ],
)
def test_a_request_is_refused_when_one_right_is_missing(
    admin: WireClient, alice: WireClient, case: Case, missing: ResourceType
) -> None:
    others = [
        (operation, kind, (NAMES | case.names)[kind])
        for kind in NAMES
        for operation in OPERATIONS[kind]
        if kind is not missing
        # The cluster's right to create, and that of brokers, stand in for others.
        and not (kind is CLUSTER and (case.api_key in FURTHER or case.api_key in (LIST_GROUPS, 19)))
        # A topic that may be written makes an idempotent producer, and one that may be created a topic.
        and not (kind is TOPIC and case.api_key in (19, INIT_PRODUCER_ID))
    ]
    grant(admin, *others)
    assert DENIED[TOPIC if case.api_key == 19 else missing] in ask(alice, admin, case)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_denial_wins_over_the_right(admin: WireClient, alice: WireClient, case: Case) -> None:
    grant(admin, *case.rights)
    kind = case.needs[0]
    add(
        admin, (Operation.ALL, kind, "*" if kind is not CLUSTER else CLUSTER_NAME), permission=Permission.DENY
    )
    assert ask(alice, admin, case) & set(DENIED.values())


def test_every_api_is_in_the_table_or_public() -> None:
    assert set(REQUIRED) | PUBLIC == set(APIS)
    assert set(FURTHER) <= set(REQUIRED)


def test_every_api_of_the_table_is_tried_here() -> None:
    tried = {case.api_key for case in CASES}
    elsewhere = {LIST_GROUPS, LIST_TRANSACTIONS}
    public = {key for key, needed in REQUIRED.items() if not needed}
    assert set(REQUIRED) == tried | elsewhere | public


# ---------------------------------------------------------------- what the table does not say

only_headrace = pytest.mark.parametrize("bootstrap", ["headrace"], indirect=True)
"""Apache Kafka is less strict or says less: it does not check a poll again while it waits, nor whether a
producer id belongs to the transactional id, and has no code for ACLs that make no sense. Its first ShareFetch
brings nothing."""


def metadata(
    client: WireClient, *names: str, version: int = 12, create: bool = False, operations: bool = False
) -> Any:
    return client.ask(
        METADATA,
        version,
        topics=[{"topic_id": None, "name": name} for name in names] if names else None,
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=operations,
    )


def test_all_topics_are_those_that_the_client_may_describe(admin: WireClient, alice: WireClient) -> None:
    create_topic(admin, "secret")
    grant(admin, (DESCRIBE, TOPIC, "orders"))
    assert [topic.name for topic in metadata(alice).topics] == ["orders"]
    described = alice.ask(75, 0, topics=[], response_partition_limit=100, cursor=None).topics
    assert [topic.name for topic in described] == ["orders"]


def test_a_topic_that_may_not_be_described_looks_the_same_whether_it_exists(
    admin: WireClient, alice: WireClient
) -> None:
    create_topic(admin, "secret")
    grant(admin, (DESCRIBE, TOPIC, "orders"))
    answers = [metadata(alice, name).topics[0] for name in ("secret", "absent")]
    assert {answer.error_code for answer in answers} == {ErrorCode.topic_authorization_failed}
    assert {answer.topic_id for answer in answers} == {None}


def test_no_topic_is_created_without_the_right(admin: WireClient, alice: WireClient) -> None:
    grant(admin, (DESCRIBE, TOPIC, "new"))
    refused = metadata(alice, "new", create=True).topics[0]
    assert refused.error_code is ErrorCode.topic_authorization_failed
    assert metadata(admin, "new").topics[0].error_code is ErrorCode.unknown_topic_or_partition
    grant(admin, (DESCRIBE, TOPIC, "new"), (CREATE, TOPIC, "new"))
    wait_until(
        lambda: metadata(alice, "new", create=True).topics[0].error_code is ErrorCode.none, "topic new"
    )


def test_the_name_of_a_topic_id_that_may_not_be_described_is_not_told(
    admin: WireClient, alice: WireClient
) -> None:
    wanted = [{"topic_id": topic_id(admin), "name": None}]
    grant(admin)
    answer = alice.ask(
        METADATA,
        12,
        topics=wanted,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    assert answer.topics[0].error_code is ErrorCode.topic_authorization_failed
    assert answer.topics[0].name is None


def test_the_operations_of_a_topic_are_those_of_the_client(admin: WireClient, alice: WireClient) -> None:
    grant(admin, (READ, TOPIC, "orders"))
    bits = metadata(alice, "orders", operations=True).topics[0].topic_authorized_operations
    assert bits == (1 << READ) | (1 << DESCRIBE)
    everything = sum(1 << operation for operation in OPERATIONS[TOPIC])
    assert metadata(admin, "orders", operations=True).topics[0].topic_authorized_operations == everything


def test_the_operations_of_the_cluster_are_those_of_the_client(admin: WireClient, alice: WireClient) -> None:
    def operations() -> int:
        answer = alice.ask(60, 1, include_cluster_authorized_operations=True, endpoint_type=1)
        return int(answer.cluster_authorized_operations)

    grant(admin, (CREATE, CLUSTER, CLUSTER_NAME))
    assert operations() == 0
    add(admin, (DESCRIBE, CLUSTER, CLUSTER_NAME))
    assert operations() == (1 << CREATE) | (1 << DESCRIBE)


def test_groups_are_listed_by_the_cluster_or_one_by_one(admin: WireClient, alice: WireClient) -> None:
    for group in ("shop", "other"):
        place = {
            "name": "orders",
            "partitions": [
                {
                    "partition_index": 0,
                    "committed_offset": 0,
                    "committed_leader_epoch": -1,
                    "committed_metadata": "",
                }
            ],
        }
        admin.ask(
            8,
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[place],
        )

    def groups() -> set[str]:
        answer = alice.ask(LIST_GROUPS, 5, states_filter=[], types_filter=[])
        return {group.group_id for group in answer.groups}

    grant(admin)
    assert groups() == set()
    grant(admin, (DESCRIBE, GROUP, "shop"))
    assert groups() == {"shop"}
    grant(admin, (DESCRIBE, CLUSTER, CLUSTER_NAME))
    assert groups() >= {"shop", "other"}


def test_transactions_are_listed_one_by_one(admin: WireClient, alice: WireClient) -> None:
    for name in ("txn", "other"):
        init_producer(admin, name)

    def listed() -> set[str]:
        answer = alice.ask(LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[])
        return {state.transactional_id for state in answer.transaction_states}

    grant(admin)
    assert listed() == set()
    grant(admin, (DESCRIBE, TRANSACTION, "txn"))
    assert listed() == {"txn"}


def test_offsets_of_all_topics_leave_out_those_that_may_not_be_described(
    admin: WireClient, alice: WireClient
) -> None:
    create_topic(admin, "secret")
    places = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": 0,
                    "committed_offset": 1,
                    "committed_leader_epoch": -1,
                    "committed_metadata": "",
                }
            ],
        }
        for name in ("orders", "secret")
    ]
    admin.ask(
        8,
        8,
        group_id="all",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=places,
    )
    grant(admin, (DESCRIBE, GROUP, "all"), (DESCRIBE, TOPIC, "orders"))
    answer = alice.ask(9, 8, groups=[{"group_id": "all", "topics": None}], require_stable=False)
    assert [topic.name for topic in answer.groups[0].topics] == ["orders"]


def test_a_session_is_refused_from_the_moment_its_right_ends(admin: WireClient, alice: WireClient) -> None:
    grant(admin, (READ, TOPIC, "orders"))
    admin.produce("orders", batch_of(b"tea"))
    opened = alice.fetch({("orders", 0): 0}, session=(0, 0))
    assert opened.responses[0].partitions[0].error_code is ErrorCode.none
    revoke(admin)
    later = alice.fetch({}, session=(opened.session_id, 1))
    assert later.responses[0].partitions[0].error_code is ErrorCode.topic_authorization_failed
    assert not later.responses[0].partitions[0].records


@only_headrace
def test_a_poll_that_waits_is_refused_when_its_right_ends_meanwhile(
    admin: WireClient, alice: WireClient
) -> None:
    grant(admin, (READ, TOPIC, "waiting"))
    create_topic(admin, "waiting")
    alice.send_fetch({("waiting", 0): 0}, max_wait=60_000)
    revoke(admin)
    admin.produce("waiting", batch_of(b"tea"))
    partition = alice.receive().responses[0].partitions[0]
    assert partition.error_code is ErrorCode.topic_authorization_failed


@only_headrace
def test_the_right_to_one_transactional_id_does_not_write_the_transaction_of_another(
    admin: WireClient, alice: WireClient
) -> None:
    """Another's transaction is open in the partition: the shortcut for its next batch must not be taken."""
    theirs = init_producer(admin, "theirs")
    admin.ask(
        24,
        3,
        v3_and_below_transactional_id="theirs",
        v3_and_below_producer_id=theirs.producer_id,
        v3_and_below_producer_epoch=theirs.producer_epoch,
        v3_and_below_topics=[{"name": "orders", "partitions": [0]}],
    )

    def batch(sequence: int) -> bytes:
        return batch_of(
            b"forged",
            producer_id=theirs.producer_id,
            producer_epoch=theirs.producer_epoch,
            base_sequence=sequence,
            attributes=0x10,
        )

    assert admin.produce("orders", batch(0), transactional_id="theirs").error_code is ErrorCode.none
    grant(admin, (WRITE, TOPIC, "orders"), (WRITE, TRANSACTION, "mine"))
    for claimed, code in (
        (None, ErrorCode.transactional_id_authorization_failed),
        ("theirs", ErrorCode.transactional_id_authorization_failed),
        ("mine", ErrorCode.invalid_producer_id_mapping),
    ):
        assert alice.produce("orders", batch(1), transactional_id=claimed).error_code is code
    end = {
        "transactional_id": "theirs",
        "producer_id": theirs.producer_id,
        "producer_epoch": theirs.producer_epoch,
    }
    assert (
        alice.ask(26, 3, **end, committed=True).error_code is ErrorCode.transactional_id_authorization_failed
    )
    assert admin.ask(26, 3, **end, committed=False).error_code is ErrorCode.none


def test_an_idempotent_producer_needs_the_right_to_write_any_topic(
    admin: WireClient, alice: WireClient
) -> None:
    def init() -> ErrorCode:
        return ErrorCode(init_producer(alice, None).error_code)

    grant(admin, (READ, TOPIC, "orders"))
    assert init() is ErrorCode.cluster_authorization_failed
    grant(admin, (WRITE, TOPIC, "orders"))
    assert init() is ErrorCode.none
    add(admin, (WRITE, TOPIC, "*"), permission=Permission.DENY)
    assert init() is ErrorCode.cluster_authorization_failed


@only_headrace
def test_records_of_a_queue_are_acknowledged_only_with_the_right_to_their_topic(
    admin: WireClient, alice: WireClient
) -> None:
    member, number = "a" * 22, topic_id(admin)

    def partition(*ranges: tuple[int, int]) -> list[dict[str, Any]]:
        batches = [{"first_offset": a, "last_offset": b, "acknowledge_types": [1]} for a, b in ranges]
        item = {"partition_index": 0, "acknowledgement_batches": batches}
        return [{"topic_id": number, "partitions": [item]}]

    grant(admin, (READ, GROUP, "queue"), (READ, TOPIC, "orders"))
    admin.produce("orders", batch_of(b"tea"))
    limits = {"max_wait": 1000, "min_bytes": 1, "max_bytes": 2**20, "max_records": 10, "batch_size": 10}
    fetched = alice.ask(
        78,
        1,
        group_id="queue",
        member_id=member,
        share_session_epoch=0,
        topics=partition(),
        forgotten_topics_data=[],
        **limits,
    )
    acquired = fetched.responses[0].partitions[0].acquired_records[0]
    grant(admin, (READ, GROUP, "queue"))
    accepted = partition((acquired.first_offset, acquired.first_offset))
    answer = alice.ask(79, 1, group_id="queue", member_id=member, share_session_epoch=1, topics=accepted)
    assert codes(answer) == {ErrorCode.none, ErrorCode.topic_authorization_failed}


def test_a_prefix_covers_the_topics_that_begin_with_it(admin: WireClient, alice: WireClient) -> None:
    revoke(admin)
    add(admin, (DESCRIBE, TOPIC, "ord"), pattern=PatternType.PREFIXED)
    assert [topic.name for topic in metadata(alice).topics] == ["orders"]


def test_a_created_topic_shows_its_settings_only_with_the_right(admin: WireClient, alice: WireClient) -> None:
    grant(admin, (CREATE, TOPIC, "made"))
    created = alice.create_topic("made")
    assert (created.error_code, created.num_partitions, created.configs) == (ErrorCode.none, -1, ())


def test_a_topic_is_deleted_only_with_the_right_and_its_name_is_not_told(
    admin: WireClient, alice: WireClient
) -> None:
    grant(admin)
    for name, number in (("orders", None), (None, topic_id(admin)), ("absent", None)):
        deleted = alice.ask(20, 6, topics=[{"name": name, "topic_id": number}], timeout=1000).responses[0]
        assert deleted.error_code is ErrorCode.topic_authorization_failed
        assert deleted.name == name


def test_acls_survive_a_restart_and_super_users_are_those_of_init_and_of_the_settings(tmp_path: Path) -> None:
    create_admin(tmp_path / "data")
    with secure_broker(tmp_path / "data", "SASL_PLAINTEXT") as kafka, WireClient(kafka.bootstrap) as admin:
        log_in(admin)
        add(admin, (READ, TOPIC, "orders"))
    anonymous = {"super_users": frozenset({"User:ANONYMOUS"})}
    with (
        secure_broker(tmp_path / "data", "SASL_PLAINTEXT", "PLAINTEXT", settings=anonymous) as kafka,
        WireClient(kafka.bootstraps[1]) as local,
    ):
        everything = Case(
            29,
            3,
            (),
            {
                "resource_type_filter": 1,
                "pattern_type_filter": 1,
                "operation": 1,
                "permission_type": 1,
                "resource_name_filter": None,
                "principal_filter": None,
                "host_filter": None,
            },
        )
        found = local.ask(29, 3, **fill(load_request_schema(29, 3), UUID(int=1), everything.fields))
        assert [(each.resource_name, each.acls[0].principal) for each in found.resources] == [
            ("orders", "User:alice")
        ]
        assert local.create_topic("orders").error_code is ErrorCode.none


def test_a_client_without_authentication_next_to_one_with_is_anonymous(tmp_path: Path) -> None:
    with (
        secure_broker(tmp_path / "data", "SASL_PLAINTEXT", "PLAINTEXT") as kafka,
        WireClient(kafka.bootstraps[1]) as local,
    ):
        assert local.create_topic("orders").error_code is ErrorCode.topic_authorization_failed


def test_acls_are_disabled_without_authentication(tmp_path: Path) -> None:
    with secure_broker(tmp_path / "data", "PLAINTEXT") as kafka, WireClient(kafka.bootstrap) as client:
        for case in CASES:
            if case.api_key in (29, 30, 31):
                schema = load_request_schema(case.api_key, case.version)
                answer = client.ask(case.api_key, case.version, **fill(schema, UUID(int=1), case.fields))
                assert codes(answer) == {ErrorCode.security_disabled}


@only_headrace
@pytest.mark.parametrize(
    "change",
    [
        {"resource_type": 1},
        {"resource_type": 99},
        {"resource_name": ""},
        {"resource_type": 4},
        {"resource_pattern_type": 1},
        {"resource_pattern_type": 2},
        {"principal": "alice"},
        {"principal": ""},
        {"host": ""},
        {"operation": 1},
        {"operation": 99},
        {"permission_type": 1},
    ],
    ids=str,
)
def test_an_acl_that_could_not_be_meant_is_refused(admin: WireClient, change: dict[str, Any]) -> None:
    creation = {
        "resource_type": 2,
        "resource_name": "orders",
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    answer = admin.ask(CREATE_ACLS, 3, creations=[creation | change])
    assert answer.results[0].error_code is ErrorCode.invalid_request
