"""The requests that cost a broker most: of each API the worst valid input, and input that is wrong.

Each case is a version and the fields of a request, or a function that brings the broker into the state in
which the request is expensive (a transaction over thousands of partitions, a group with large subscriptions,
a member that holds thousands of records) and gives the fields.
"""

import itertools
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from uuid import UUID

from headrace.broker.client_telemetry import SUBSCRIPTION_ID
from headrace.protocol.batch import HEADER_BYTES, TRANSACTIONAL, build_batch
from headrace.protocol.compression import ZSTD, compress
from headrace.protocol.records import NewRecord, encode_batch, encode_varint
from tests.broker.pushed_metrics import otlp_metrics
from tests.broker.wire_client import METADATA, WireClient, batch_of

WIDE = 3_000
"""Partitions of the topic `wide`."""
ITEMS = 11_000
"""Items of a request that has nearly as many as it may."""
NAMES = [f"name-{number}" for number in range(ITEMS)]
LONG_NAME = "x" * 32_000
UNKNOWN_TOPIC = UUID(int=9)
TIMESTAMP = 1_700_000_000_000
MEMBER = "m" * 22
LARGE_BATCH_BYTES = 9 * 2**20
HUGE_BATCH_BYTES = 64 * 2**20
LARGE = bytes(HUGE_BATCH_BYTES // 2)
COMMITTED_GROUPS = 5
"""Groups that have committed offsets for every partition of `wide`."""
HELD_RECORDS = 2_000
MANY_HELD_RECORDS = 10_000
"""Records that a member of the group `porters` may hold."""

_numbers = itertools.count()


def lying_batch(count: int) -> bytes:
    """Records whose times grow, under a header that claims a later one."""
    records = []
    for number in range(count):
        body = b"\0" + encode_varint(number) + encode_varint(number) + b"\x01\0\0"
        records.append(encode_varint(len(body)) + body)
    section = b"".join(records)
    return bytes(build_batch(section, count, base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP + 10 * count))


def partitions_of(topic: str, **fields: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": topic,
            "partitions": [{"partition_index": index, **fields} for index in range(ITEMS)],
        }
    ]


def pushed_telemetry(points: int) -> Callable[[WireClient], dict[str, Any]]:
    """A push of as many series as fit, by a new client each time."""

    def fields(_client: WireClient) -> dict[str, Any]:
        return {
            "client_instance_id": UUID(int=1000 + next(_numbers)),
            "subscription_id": SUBSCRIPTION_ID,
            "terminating": False,
            "compression_type": 4,
            "metrics": compress(4, otlp_metrics({"worst": [({"n": str(n)}, n) for n in range(points)]})),
        }

    return fields


def create(name: str, partitions: int = 1, configs: Any = ()) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": configs,
    }


def topics_to_create(topics: list[dict[str, Any]], *, validate_only: bool = False) -> dict[str, Any]:
    return {"topics": topics, "timeout": 60_000, "validate_only": validate_only}


def resource(name: str, *settings: tuple[str, str], kind: int = 2, operation: int = 0) -> dict[str, Any]:
    configs = [{"name": key, "value": value, "config_operation": operation} for key, value in settings]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


METADATA_FLAGS = {
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
COMMIT = {"committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": "x" * 100}
UNKNOWN_PRODUCER = {"transactional_id": "t", "producer_id": 0, "producer_epoch": 0}
Fields = dict[str, Any]
Case = tuple[int, Fields | Callable[[WireClient], Fields]]
"""A version, and the fields of a request or what makes them."""


def prepare(client: WireClient) -> None:
    """Bring a broker into the state that the cases need."""
    client.create_topic("wide", partitions=WIDE)
    client.create_topic("orders", max_message_bytes=str(2 * HUGE_BATCH_BYTES), retention_ms="-1")
    client.create_topic(
        "live",
        max_message_bytes=str(2 * HUGE_BATCH_BYTES),
        headrace_storage="memory",
        retention_bytes=str(3 * HUGE_BATCH_BYTES),
    )
    client.create_topic("accounts", max_message_bytes=str(2 * HUGE_BATCH_BYTES), cleanup_policy="compact")
    client.create_topic("bounded", partitions=WIDE, headrace_overflow="block", **BOUND)
    client.create_topic("jobs", retention_ms="-1")
    client.produce("orders", lying_batch(20_000))
    for _ in range(10):
        client.produce("jobs", batch_of(*[b"job"] * HELD_RECORDS))
    for number in range(50):
        join_group(client, f"group-{number}", metadata=bytes(50_000))
    for number in range(COMMITTED_GROUPS):
        commit_offsets(client, f"committed-{number}")
    for number in range(50):
        init_producer(client, f"{'a' * 2_000}{number}")
    recent = ("share.auto.offset.reset", "by_duration:P1D")
    client.ask(33, 2, resources=[resource("recent", recent, kind=32)], validate_only=False)
    settings = ("share.auto.offset.reset", "earliest")
    client.ask(33, 2, resources=[resource("workers", settings, kind=32)], validate_only=False)
    locks = ("share.partition.max.record.locks", str(MANY_HELD_RECORDS))
    client.ask(33, 2, resources=[resource("porters", settings, locks, kind=32)], validate_only=False)


BOUND = {"headrace_overflow_records": "1000", "headrace_overflow_groups": "committed-0"}


def init_producer(client: WireClient, transactional_id: str | None = None) -> dict[str, Any]:
    """A transactional producer, as the fields of its requests."""
    name = transactional_id or f"producer-{next(_numbers)}"
    answer = client.ask(
        22, 3, transactional_id=name, transaction_timeout=600_000, producer_id=-1, producer_epoch=-1
    )
    return {
        "transactional_id": name,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


def additions(producer: dict[str, Any], partitions: Sequence[int] = range(WIDE)) -> dict[str, Any]:
    """The request that adds partitions of `wide` to a transaction."""
    fields = {f"v3_and_below_{name}": value for name, value in producer.items()}
    return {**fields, "v3_and_below_topics": [{"name": "wide", "partitions": partitions}]}


def begin_wide_transaction(client: WireClient) -> dict[str, Any]:
    """A producer whose transaction holds every partition of `wide`, and offsets for each."""
    producer = init_producer(client)
    client.ask(24, 3, **additions(producer))
    client.ask(28, 5, **offsets_in(producer))
    return producer


def offsets_in(producer: dict[str, Any]) -> dict[str, Any]:
    """The request that brings offsets into a transaction."""
    group = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}
    return {**producer, **group, "topics": partitions_of("wide", **COMMIT)}


def transactional_writes(client: WireClient) -> dict[str, Any]:
    """A write to every partition of `wide` that adds each to the transaction."""
    producer = init_producer(client)
    batch = batch_of(
        b"x" * 100,
        producer_id=producer["producer_id"],
        producer_epoch=producer["producer_epoch"],
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    return {**produce(dict.fromkeys(range(WIDE), batch)), "transactional_id": producer["transactional_id"]}


def produce(batches: dict[int, bytes], topic: str = "wide") -> dict[str, Any]:
    """The request that writes batches to partitions."""
    data = [{"index": index, "records": batch} for index, batch in batches.items()]
    return {
        "transactional_id": None,
        "acks": 1,
        "timeout": 1000,
        "topic_data": [{"name": topic, "partition_data": data}],
    }


def subscription(count: int, name: bytes = b"") -> bytes:
    """The metadata of a consumer that subscribes to this many topics."""
    return struct.pack(">hi", 0, count) + (struct.pack(">h", len(name)) + name) * count


def join(group: str, protocols: list[dict[str, Any]], member_id: str = "") -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 1_800_000,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": protocols,
    }


def join_group(client: WireClient, group: str, metadata: bytes) -> Any:
    """The answer to a member that has joined a group alone."""
    protocols = [{"name": "range", "metadata": metadata}]
    assigned = client.ask(11, 5, **join(group, protocols))
    return client.ask(11, 5, **join(group, protocols, assigned.member_id))


def joins(protocols: list[dict[str, Any]]) -> Callable[[WireClient], dict[str, Any]]:
    """The second join of a member to a group of its own."""

    def fields(client: WireClient) -> dict[str, Any]:
        group = f"joined-{next(_numbers)}"
        assigned = client.ask(11, 5, **join(group, protocols))
        return join(group, protocols, assigned.member_id)

    return fields


def syncs(client: WireClient) -> dict[str, Any]:
    """The assignments that a leader brings, for itself and for thousands who are no members."""
    group = f"synced-{next(_numbers)}"
    joined = join_group(client, group, subscription(400_000))
    own = {"member_id": joined.member_id, "assignment": b"x" * 1_000_000}
    return {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "assignments": [own, *({"member_id": name, "assignment": b"x" * 50} for name in NAMES)],
    }


def commit_offsets(client: WireClient, group: str) -> None:
    client.ask(8, 7, **commits(group))


def commits(group: str) -> dict[str, Any]:
    """The request that commits an offset for each partition of `wide`, and for unknown partitions."""
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": partitions_of("wide", **COMMIT),
    }


def topic_id(client: WireClient, name: str) -> UUID:
    topics = [{"topic_id": None, "name": name}]
    flags = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    answer = client.ask(METADATA, 12, topics=topics, **flags)
    found: UUID = answer.topics[0].topic_id
    return found


def heartbeat(group: str, *topics: str, epoch: int = 0) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": MEMBER,
        "member_epoch": epoch,
        "rack_id": None,
        "subscribed_topic_names": topics or None,
    }


def share_partitions(topic: UUID, partitions: Sequence[int], ranges: Sequence[Any] = ()) -> dict[str, Any]:
    asked = [{"partition_index": index, "acknowledgement_batches": ranges} for index in partitions]
    return {"topics": [{"topic_id": topic, "partitions": asked}]}


def share_fetch(group: str, epoch: int, topics: dict[str, Any]) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": MEMBER,
        "share_session_epoch": epoch,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "max_records": 10_000,
        "batch_size": 10_000,
        "forgotten_topics_data": (),
        **topics,
    }


def queue_with(client: WireClient, batch: bytes) -> tuple[str, str]:
    """A new topic with one batch, and a new share group that may read it."""
    topic, group = f"queue-{next(_numbers)}", f"readers-{next(_numbers)}"
    client.create_topic(topic, max_message_bytes=str(2 * HUGE_BATCH_BYTES), retention_ms="-1")
    assert client.produce(topic, batch).error_code == 0
    earliest = ("share.auto.offset.reset", "earliest")
    client.ask(33, 2, resources=[resource(group, earliest, kind=32)], validate_only=False)
    client.ask(76, 1, **heartbeat(group, topic))
    return topic, group


def share_fetch_of(batch: Callable[[], bytes]) -> Callable[[WireClient], dict[str, Any]]:
    """The first fetch of a share group from a topic with this batch."""

    def fields(client: WireClient) -> dict[str, Any]:
        topic, group = queue_with(client, batch())
        fetch = share_fetch(group, 0, share_partitions(topic_id(client, topic), [0]))
        return {**fetch, "max_wait": 1_500, "max_bytes": 2**30}

    return fields


def wide_session(epoch: int) -> Callable[[WireClient], dict[str, Any]]:
    """A request of a session over all partitions of `wide`; the session is opened if the epoch is not 0."""

    def fields(client: WireClient) -> dict[str, Any]:
        client.ask(76, 1, **heartbeat("readers", "wide"))
        partitions = share_partitions(topic_id(client, "wide"), range(WIDE))
        if epoch:
            client.ask(78, 1, **share_fetch("readers", 0, partitions))
        return share_fetch("readers", epoch, partitions)

    return fields


def acknowledges(
    kind: int, *, every: int = 2, group: str = "workers", count: int = 1
) -> Callable[[WireClient], dict[str, Any]]:
    """What a member says of the records that it holds, in as many ranges as a request may have."""

    def fields(client: WireClient) -> dict[str, Any]:
        client.ask(76, 1, **heartbeat(group, "jobs"))
        topic = topic_id(client, "jobs")
        held: list[int] = []
        epoch = 0
        while len(held) < count:
            answer = client.ask(78, 1, **share_fetch(group, epoch, share_partitions(topic, [0])))
            runs = [run for each in answer.responses for run in each.partitions[0].acquired_records]
            held += [offset for run in runs for offset in range(run.first_offset, run.last_offset + 1)]
            epoch += 1
        ranges = [
            {"first_offset": offset, "last_offset": offset, "acknowledge_types": (kind,)}
            for offset in sorted(held)[::every]
        ]
        return {
            "group_id": group,
            "member_id": MEMBER,
            "share_session_epoch": epoch,
            **share_partitions(topic, [0], ranges),
        }

    return fields


def acknowledges_everywhere(client: WireClient) -> dict[str, Any]:
    """Acknowledgments of records that the member does not hold, in thousands of partitions."""
    fields = wide_session(0)(client)
    client.ask(78, 1, **fields)
    offset = {"first_offset": 0, "last_offset": 2**62, "acknowledge_types": (0,)}
    return {
        "group_id": "readers",
        "member_id": MEMBER,
        "share_session_epoch": 1,
        **share_partitions(fields["topics"][0]["topic_id"], range(WIDE), [offset]),
    }


def leave_share_group(client: WireClient) -> None:
    client.ask(76, 1, **heartbeat("readers", epoch=-1))


def placed(client: WireClient) -> dict[str, Any]:
    """The request that places a share group without members in every partition of `wide`."""
    leave_share_group(client)
    starts = [{"partition_index": index, "start_offset": 0} for index in range(WIDE)]
    return {"group_id": "readers", "topics": [{"topic_name": "wide", "partitions": starts}]}


def forgotten_queue(client: WireClient) -> dict[str, Any]:
    client.ask(76, 1, **heartbeat("readers", "wide"))
    leave_share_group(client)
    return {"group_id": "readers", "topics": [{"topic_name": "wide"}, *({"topic_name": n} for n in NAMES)]}


def deleted_groups(client: WireClient) -> dict[str, Any]:
    """Groups with thousands of offsets, a share group with as many partitions, and names of none."""
    client.ask(76, 1, **heartbeat("readers", "wide"))
    leave_share_group(client)
    commit_offsets(client, "deleted-0")
    commit_offsets(client, "deleted-1")
    return {"groups_names": ["deleted-0", "readers", "deleted-1", *NAMES[:9_000]]}


def deleted_topic(client: WireClient) -> dict[str, Any]:
    """A topic of which groups of both kinds have read every partition."""
    client.create_topic("read", partitions=1_000)
    for number in range(5):
        commit = {**commits(f"committed-{number}"), "topics": partitions_of("read", **COMMIT)}
        client.ask(8, 7, **commit)
    client.ask(76, 1, **heartbeat("readers", "read"))
    return {"topic_names": ["read"], "timeout": 60_000}


def listed_transactions(pattern: str) -> dict[str, Any]:
    return {
        "state_filters": NAMES[: ITEMS // 2],
        "producer_id_filters": range(ITEMS // 2),
        "duration_filter": -1,
        "transactional_id_pattern": pattern,
    }


def large_batch(checksum: int = 0, size: int = LARGE_BATCH_BYTES) -> bytes:
    """A batch of one record as large as topics may allow; its checksum is wrong by `checksum`."""
    batch = bytearray(batch_of(bytes(size)))
    batch[17] ^= checksum
    return bytes(batch)


def keyed_batch(count: int) -> bytes:
    """A batch of records with keys, all together as large as topics may allow."""
    return batch_of(*[bytes(HUGE_BATCH_BYTES // count)] * count, key=b"k")


@cache
def compressed_keyed_batch() -> bytes:
    """A small batch of many records with keys, whose validation decompresses and walks all of them."""
    return bytes(encode_batch([NewRecord(b"k", b"", TIMESTAMP)] * 100_000, codec=ZSTD))


def batch_with_headers(records: int, headers: int, value: bytes = b"v") -> bytes:
    """A batch of records with as many empty headers each."""
    body = b"\0\0%b\1" + encode_varint(len(value)) + value + encode_varint(headers) + b"\0\1" * headers
    section = bytearray()
    for delta in range(records):
        record = body.replace(b"%b", encode_varint(delta), 1)
        section += encode_varint(len(record)) + record
    return bytes(build_batch(section, records, base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP))


def broken_batch(size: int) -> bytes:
    """A batch whose first record is large, and whose second one cannot be read."""
    batch = bytes(encode_batch([NewRecord(None, bytes(size), TIMESTAMP)]))
    section = batch[HEADER_BYTES:] + bytes(20)
    return bytes(build_batch(section, 2, base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP))


def lying_count() -> bytes:
    """A batch of a megabyte that claims to hold more records than its bytes can."""
    return bytes(build_batch(bytes(900_000), 2**31 - 1, base_timestamp=TIMESTAMP, max_timestamp=TIMESTAMP))


HOSTILE_PATTERNS = (
    "(a|aa)" * 40 + "b",
    ".*.*.*.*b",
    "(a*)*b",
    "(a?){100}a{100}b",
    "(a|b|[c-z]|.)*" + "a" * 200,
    "[",
)
"""Expressions over which a matcher that tries one way after the other takes for ever, and a wrong one."""


def aborted_transaction(client: WireClient) -> dict[str, Any]:
    """An operator aborts a transaction in one of its thousands of partitions, and in all others."""
    producer = begin_wide_transaction(client)
    topics = [{"name": "wide", "partition_indexes": range(WIDE)}]
    marker = {
        "producer_id": producer["producer_id"],
        "producer_epoch": producer["producer_epoch"],
        "transaction_result": False,
        "topics": topics,
        "coordinator_epoch": 0,
    }
    return {"markers": [marker]}


def acl(name: str) -> dict[str, Any]:
    return {
        "resource_type": 2,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }


def acl_filter() -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


def quota(name: str) -> dict[str, Any]:
    """A quota of a user."""
    ops = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
    return {"entity": [{"entity_type": "user", "entity_name": name}], "ops": ops}


def credential(name: str) -> dict[str, Any]:
    more = {"iterations": 4096, "salt": bytes(16), "salted_password": bytes(32)}
    return {"name": name, "mechanism": 1, **more}


WORST: dict[int, list[Case]] = {
    0: [
        (12, transactional_writes),
        (9, produce({0: large_batch()}, "orders")),
        (9, produce({0: large_batch(checksum=1)}, "orders")),
        (9, lambda _: produce({0: large_batch(size=HUGE_BATCH_BYTES)}, "orders")),
        (9, lambda _: produce({0: large_batch(size=HUGE_BATCH_BYTES)}, "live")),
        (9, lambda _: produce({0: keyed_batch(1)}, "accounts")),
        (9, lambda _: produce({0: keyed_batch(1_000)}, "accounts")),
        (9, lambda _: produce({0: compressed_keyed_batch()}, "accounts")),
        (9, produce({0: lying_count()}, "orders")),
        (
            9,
            {
                "transactional_id": None,
                "acks": 1,
                "timeout": 1000,
                "topic_data": [
                    {
                        "name": "wide",
                        "partition_data": [
                            {"index": index, "records": batch_of(b"x" * 100)} for index in range(WIDE)
                        ],
                    }
                ],
            },
        ),
        (
            9,
            {
                "transactional_id": None,
                "acks": 1,
                "timeout": 1000,
                "topic_data": [
                    {
                        "name": "wide",
                        "partition_data": [{"index": 0, "records": bytes(61)} for _ in range(ITEMS)],
                    }
                ],
            },
        ),
        (
            9,
            {
                "transactional_id": None,
                "acks": 1,
                "timeout": 1000,
                "topic_data": [
                    {"name": "wide", "partition_data": [{"index": 0, "records": bytes(900_000)}] * 20}
                ],
            },
        ),
    ],
    1: [
        (
            11,
            {
                "replica_id": -1,
                "max_wait": 0,
                "min_bytes": 1,
                "max_bytes": 2**20,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": epoch,
                "topics": [
                    {
                        "topic": "wide",
                        "partitions": [
                            {
                                "partition": index,
                                "current_leader_epoch": -1,
                                "fetch_offset": 0,
                                "log_start_offset": -1,
                                "partition_max_bytes": 1000,
                            }
                            for index in range(count)
                        ],
                    }
                ],
                "forgotten_topics_data": (),
                "rack_id": "",
            },
        )
        for epoch, count in ((-1, ITEMS), (0, WIDE))
    ],
    2: [
        (
            7,
            {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": partitions_of(topic, current_leader_epoch=-1, timestamp=timestamp),
            },
        )
        for topic, timestamp in (("wide", 5), ("orders", -3), ("orders", TIMESTAMP + 100_000))
    ],
    3: [
        (9, {"topics": None, **METADATA_FLAGS}),
        (9, {"topics": [{"name": "wide"}] * ITEMS, **METADATA_FLAGS}),
        (9, {"topics": [{"name": name} for name in NAMES], **METADATA_FLAGS}),
    ],
    8: [
        (7, commits("committed-0")),
        (
            7,
            {
                "group_id": "g",
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": partitions_of("wide", **COMMIT),
            },
        ),
    ],
    9: [
        (
            8,
            {
                "groups": [{"group_id": f"committed-{n}", "topics": None} for n in range(COMMITTED_GROUPS)],
                "require_stable": True,
            },
        ),
        (
            8,
            {
                "groups": [{"group_id": "g", "topics": None}] * ITEMS,
                "require_stable": True,
            },
        ),
        (
            5,
            {
                "group_id": "g",
                "topics": [{"name": "wide", "partition_indexes": range(ITEMS)}],
            },
        ),
    ],
    10: [(4, {"key_type": 0, "coordinator_keys": NAMES}), (4, {"key_type": 9, "coordinator_keys": NAMES})],
    11: [
        (5, joins([{"name": "range", "metadata": subscription(1_000_000)}])),
        (5, joins([{"name": "range", "metadata": subscription(3_900_000)}])),
        (5, joins([{"name": "range", "metadata": subscription(20_000, b"x" * 60)}])),
        (5, joins([{"name": name, "metadata": b"x"} for name in NAMES])),
        (
            5,
            {
                "group_id": "crowd",
                "session_timeout": 10_000,
                "rebalance_timeout": 10_000,
                "member_id": "nobody",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": name, "metadata": b"x"} for name in NAMES],
            },
        ),
    ],
    12: [(3, {"group_id": LONG_NAME, "generation_id": 1, "member_id": LONG_NAME, "group_instance_id": None})],
    13: [
        (
            3,
            {
                "group_id": "group-0",
                "members": [{"member_id": name, "group_instance_id": name} for name in NAMES],
            },
        )
    ],
    14: [
        (3, syncs),
        (
            3,
            {
                "group_id": "group-0",
                "generation_id": 1,
                "member_id": "nobody",
                "group_instance_id": None,
                "assignments": [{"member_id": name, "assignment": b"x" * 100} for name in NAMES],
            },
        ),
    ],
    15: [
        (5, {"groups": ["group-0"] * ITEMS, "include_authorized_operations": True}),
        (5, {"groups": [f"group-{n}" for n in range(50)], "include_authorized_operations": True}),
        (5, {"groups": NAMES, "include_authorized_operations": True}),
    ],
    16: [(4, {"states_filter": NAMES})],
    17: [(1, {"mechanism": LONG_NAME})],
    18: [(3, {"client_software_name": LONG_NAME, "client_software_version": LONG_NAME})],
    19: [
        (5, topics_to_create([create(f"bad name {name}") for name in NAMES], validate_only=True)),
        (5, topics_to_create([create("same")] * ITEMS)),
        (5, topics_to_create([create("broad", partitions=1_000)])),
        (
            5,
            topics_to_create(
                [create("set", configs=[{"name": name, "value": "1"} for name in NAMES])], validate_only=True
            ),
        ),
    ],
    37: [
        (
            2,
            {
                "topics": [{"name": "broad", "count": 1_500, "assignments": None}],
                "timeout": 60_000,
                "validate_only": False,
            },
        ),
        (
            2,
            {
                "topics": [{"name": name, "count": 5, "assignments": None} for name in NAMES],
                "timeout": 1000,
                "validate_only": True,
            },
        ),
    ],
    20: [
        (5, deleted_topic),
        (5, {"topic_names": ["broad"], "timeout": 1000}),
        (5, {"topic_names": NAMES, "timeout": 1000}),
    ],
    21: [(2, {"topics": partitions_of("wide", offset=-1), "timeout": 1000})],
    22: [
        (
            3,
            lambda client: {
                **begin_wide_transaction(client),
                "transaction_timeout": 1000,
                "producer_id": -1,
                "producer_epoch": -1,
            },
        ),
        (
            3,
            {
                "transactional_id": LONG_NAME,
                "transaction_timeout": 1000,
                "producer_id": -1,
                "producer_epoch": -1,
            },
        ),
    ],
    23: [
        (
            3,
            {
                "replica_id": -1,
                "topics": [
                    {
                        "topic": "wide",
                        "partitions": [
                            {"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}
                            for index in range(ITEMS)
                        ],
                    }
                ],
            },
        )
    ],
    24: [
        (3, lambda client: additions(init_producer(client))),
        (3, lambda client: additions(init_producer(client), [*range(WIDE), *range(-5_000, 0)])),
        (
            4,
            lambda client: {
                "transactions": [
                    {
                        **init_producer(client),
                        "verify_only": True,
                        "topics": [{"name": "wide", "partitions": range(WIDE)}],
                    }
                ]
                * 3
            },
        ),
        (
            3,
            {
                "v3_and_below_transactional_id": "t",
                "v3_and_below_producer_id": 0,
                "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": [{"name": "wide", "partitions": range(ITEMS)}],
            },
        ),
    ],
    25: [
        (3, lambda client: {**begin_wide_transaction(client), "group_id": LONG_NAME}),
        (3, {**UNKNOWN_PRODUCER, "group_id": LONG_NAME}),
    ],
    26: [
        (3, lambda client: {**begin_wide_transaction(client), "committed": True}),
        (3, lambda client: {**begin_wide_transaction(client), "committed": False}),
        (3, {**UNKNOWN_PRODUCER, "committed": True}),
    ],
    27: [
        (1, aborted_transaction),
        (
            1,
            {
                "markers": [
                    {
                        "producer_id": 5,
                        "producer_epoch": 0,
                        "transaction_result": result,
                        "topics": [{"name": "wide", "partition_indexes": range(ITEMS // 2)}],
                        "coordinator_epoch": 0,
                    }
                    for result in (False, True)
                ]
            },
        ),
    ],
    28: [
        (3, lambda client: offsets_in(begin_wide_transaction(client))),
        (5, lambda client: offsets_in(init_producer(client))),
        (
            3,
            {
                **UNKNOWN_PRODUCER,
                "group_id": "g",
                "generation_id": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": partitions_of("wide", **COMMIT),
            },
        ),
    ],
    29: [(3, acl_filter())],
    30: [(3, {"creations": [acl(name) for name in NAMES]})],
    31: [(3, {"filters": [acl_filter()] * ITEMS})],
    32: [
        (
            4,
            {
                "resources": [{"resource_type": 2, "resource_name": "bounded", "configuration_keys": None}],
                "include_synonyms": True,
                "include_documentation": True,
            },
        ),
        (
            4,
            {
                "resources": [{"resource_type": 2, "resource_name": "wide", "configuration_keys": None}]
                * ITEMS,
                "include_synonyms": True,
                "include_documentation": True,
            },
        ),
        (
            4,
            {
                "resources": [{"resource_type": 2, "resource_name": "wide", "configuration_keys": NAMES}],
                "include_synonyms": True,
                "include_documentation": True,
            },
        ),
        (
            4,
            {
                "resources": [
                    {"resource_type": 32, "resource_name": name, "configuration_keys": None}
                    for name in NAMES[:3000]
                ],
                "include_synonyms": True,
                "include_documentation": True,
            },
        ),
    ],
    33: [
        (2, {"resources": [resource("wide", ("retention.ms", "1"))] * ITEMS, "validate_only": False}),
        (2, {"resources": [resource("wide", *((name, "1") for name in NAMES))], "validate_only": False}),
        (2, {"resources": [resource(name) for name in NAMES], "validate_only": False}),
    ],
    35: [(2, {"topics": None}), (2, {"topics": [{"topic": "wide", "partitions": range(ITEMS)}]})],
    36: [(2, {"auth_bytes": bytes(2**20)})],
    42: [(2, deleted_groups), (2, {"groups_names": NAMES})],
    44: [
        (
            1,
            {
                "resources": [
                    resource("wide", ("cleanup.policy", ",".join(["compact"] * 4_000)), operation=2),
                    resource("orders", *[("cleanup.policy", "delete," * 4_000)] * 50, operation=2),
                ],
                "validate_only": False,
            },
        )
    ],
    47: [
        (
            0,
            {"group_id": "g", "topics": partitions_of("wide")},
        )
    ],
    48: [
        (1, {"components": [], "strict": False}),
        (
            1,
            {
                "components": [{"entity_type": "user", "match_type": 0, "match": n} for n in NAMES],
                "strict": True,
            },
        ),
    ],
    49: [
        (1, {"entries": [quota(name) for name in NAMES], "validate_only": True}),
        (1, {"entries": [quota(name) for name in NAMES], "validate_only": False}),
    ],
    50: [(0, {"users": [{"name": name} for name in NAMES]}), (0, {"users": None})],
    51: [
        (0, {"deletions": [{"name": name, "mechanism": 1} for name in NAMES], "upsertions": []}),
        (0, {"deletions": [], "upsertions": [credential(name) for name in NAMES]}),
    ],
    60: [(0, {"include_cluster_authorized_operations": True})],
    61: [(0, {"topics": [{"name": "wide", "partition_indexes": range(ITEMS)}]})],
    65: [
        (
            0,
            lambda client: {
                "transactional_ids": [begin_wide_transaction(client)["transactional_id"]]
                + [f"{'a' * 2_000}{n}" for n in range(50)]
            },
        ),
        (0, {"transactional_ids": NAMES}),
    ],
    66: [
        *(
            (2, {**listed_transactions(pattern), "state_filters": (), "producer_id_filters": ()})
            for pattern in HOSTILE_PATTERNS
        ),
        (
            2,
            {
                "state_filters": NAMES[: ITEMS // 2],
                "producer_id_filters": range(ITEMS // 2),
                "duration_filter": -1,
                "transactional_id_pattern": None,
            },
        ),
    ],
    74: [(1, {"resource_types": [2, 4, 16, 32] * (ITEMS // 4)})],
    75: [
        (
            0,
            {
                "topics": [{"name": name} for name in NAMES],
                "response_partition_limit": 2**31 - 1,
                "cursor": None,
            },
        ),
        (0, {"topics": [{"name": "wide"}] * ITEMS, "response_partition_limit": 2**31 - 1, "cursor": None}),
    ],
    76: [
        (1, heartbeat("recent", "orders", "wide")),
        (
            1,
            lambda client: (
                leave_share_group(client),
                client.ask(92, 0, group_id="readers", topics=[{"topic_name": "wide"}]),
                heartbeat("readers", "wide"),
            )[2],
        ),
        (
            1,
            lambda client: (
                client.ask(76, 1, **heartbeat("readers", "wide")),
                heartbeat("readers", epoch=-1),
            )[1],
        ),
        (
            1,
            {
                "group_id": "queue",
                "member_id": "m" * 30,
                "member_epoch": 0,
                "rack_id": None,
                "subscribed_topic_names": NAMES,
            },
        ),
    ],
    77: [
        (
            1,
            lambda client: (
                client.ask(76, 1, **heartbeat("readers", "wide")),
                {"group_ids": ["readers"] * 5_000, "include_authorized_operations": True},
            )[1],
        ),
        (1, {"group_ids": NAMES, "include_authorized_operations": True}),
    ],
    78: [
        (1, wide_session(0)),
        (1, wide_session(1)),
        (1, wide_session(-1)),
        (1, share_fetch_of(lambda: large_batch(size=HUGE_BATCH_BYTES))),
        (1, share_fetch_of(lambda: keyed_batch(1_000))),
        (1, share_fetch_of(lambda: bytes(encode_batch([NewRecord(None, LARGE, TIMESTAMP)], codec=ZSTD)))),
        (1, share_fetch_of(lambda: broken_batch(HUGE_BATCH_BYTES // 2))),
        (1, share_fetch_of(lambda: batch_with_headers(1, 450_000))),
        (1, share_fetch_of(lambda: batch_with_headers(100, 4_500))),
        (1, share_fetch_of(lambda: batch_with_headers(2_000, 200, b"headrace-"))),
        (
            1,
            {
                "group_id": "queue",
                "member_id": "m",
                "share_session_epoch": 0,
                "max_wait": 0,
                "min_bytes": 1,
                "max_bytes": 2**20,
                "max_records": 500,
                "batch_size": 500,
                "topics": [
                    {
                        "topic_id": UNKNOWN_TOPIC,
                        "partitions": [
                            {"partition_index": index, "acknowledgement_batches": ()}
                            for index in range(ITEMS // 4)
                        ],
                    }
                ],
                "forgotten_topics_data": (),
            },
        ),
    ],
    79: [
        *((1, acknowledges(kind, every=every)) for kind in (1, 2, 3) for every in (1, 2)),
        (1, acknowledges(2, every=1, group="porters", count=MANY_HELD_RECORDS)),
        (1, acknowledges_everywhere),
        (
            1,
            {
                "group_id": "queue",
                "member_id": "m",
                "share_session_epoch": 1,
                "topics": [
                    {
                        "topic_id": UNKNOWN_TOPIC,
                        "partitions": [
                            {
                                "partition_index": 0,
                                "acknowledgement_batches": [
                                    {"first_offset": 2 * n, "last_offset": 2 * n, "acknowledge_types": (1,)}
                                    for n in range(ITEMS // 4)
                                ],
                            }
                        ],
                    }
                ],
            },
        ),
    ],
    71: [(0, {"client_instance_id": UUID(int=7)})],
    72: [(0, pushed_telemetry(points)) for points in (1, 20_000)],
    90: [
        (
            0,
            lambda client: (
                client.ask(76, 1, **heartbeat("readers", "wide")),
                {"groups": [{"group_id": "readers", "topics": None}] * 5_000},
            )[1],
        ),
        (0, {"groups": [{"group_id": name, "topics": None} for name in NAMES]}),
    ],
    91: [
        (0, placed),
        (
            0,
            {
                "group_id": "queue",
                "topics": [
                    {
                        "topic_name": "wide",
                        "partitions": [
                            {"partition_index": index, "start_offset": 0} for index in range(WIDE)
                        ],
                    }
                ],
            },
        ),
    ],
    92: [
        (0, forgotten_queue),
        (0, {"group_id": "queue", "topics": [{"topic_name": name} for name in NAMES]}),
    ],
}
