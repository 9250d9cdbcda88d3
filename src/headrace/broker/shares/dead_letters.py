"""The topic of a group's dead letters: its name, what a letter holds, and which letters are there already."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.records import NewRecord, decode_batch

if TYPE_CHECKING:
    from headrace.broker.shares.records import ShareKey
    from headrace.broker.shares.states import Burial
    from headrace.protocol.records import Headers, Record
    from headrace.storage.log import Log

TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
GROUP: Final = "__dlq.errors.group"
DELIVERIES: Final = "__dlq.errors.delivery.count"
REASON: Final = "__dlq.errors.message"
"""The headers of a dead letter have the names that Apache Kafka 4.4 gives them (KIP-1191)."""
NAMES: Final = frozenset({TOPIC, PARTITION, OFFSET, GROUP, DELIVERIES, REASON})

LONGEST_NAME: Final = 249
_FOREIGN = re.compile(r"[^a-zA-Z0-9._-]")


class Place(NamedTuple):
    """Where a dead letter came from."""

    group: str
    partition: int
    offset: int


def dead_letter_topic(topic: str, group: str) -> str:
    """The topic of the dead letters of `group` on `topic`.

    >>> dead_letter_topic("orders", "mailer")
    'orders.mailer.dead'

    A group may have a name that no topic can have: what is foreign becomes `-`, and a hash keeps it apart.
    """
    name = f"{topic}.{group}.dead"
    if len(name) <= LONGEST_NAME and not _FOREIGN.search(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    plain = _FOREIGN.sub("-", f"{topic}.{group}")[: LONGEST_NAME - len(digest) - len(".-.dead")]
    return f"{plain}-{digest}.dead"


def write_letter(
    record: Record | None, share: ShareKey, topic: str, offset: int, burial: Burial
) -> NewRecord:
    """The dead letter of a record; of one that the log has lost, the headers alone."""
    origin: Headers = (
        (TOPIC, topic.encode()),
        (PARTITION, b"%d" % share.partition),
        (OFFSET, b"%d" % offset),
        (GROUP, share.group.encode()),
        (DELIVERIES, b"%d" % burial.deliveries),
        (REASON, burial.reason.text.encode()),
    )
    if record is None:
        return NewRecord(None, None, 0, origin)
    kept = tuple(header for header in record.headers if header[0] not in NAMES)
    return NewRecord(record.key, record.value, 0, (*kept, *origin))


def read_record(log: Log, offset: int) -> Record | None:
    """The record at an offset, if it is still there."""
    if offset < log.start_offset:
        return None
    found = log.read(offset, 1, log.end_offset, at_least_one=True)
    if found is None:
        return None
    return next((record for record in decode_batch(found.read()) if record.offset == offset), None)


def read_places(log: Log, position: int) -> set[Place]:
    """The origins of the letters from `position` to the end."""
    places: set[Place] = set()
    for data in log.batches(max(position, log.start_offset)):
        for batch in split_batches(memoryview(data)):
            if not read_header(batch).is_control:
                places.update(_place(record) for record in decode_batch(batch))
    return places


def _place(record: Record) -> Place:
    headers = dict(record.headers)
    group, partition, offset = (headers.get(name) or b"" for name in (GROUP, PARTITION, OFFSET))
    is_letter = partition.isdigit() and offset.isdigit()
    return (
        Place(group.decode(errors="replace"), int(partition), int(offset)) if is_letter else Place("", -1, -1)
    )
