"""The topic of a group's dead letters: its name, what a letter holds, and which letters are there already."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, decode_batch

if TYPE_CHECKING:
    from headrace.broker.shares.records import ShareKey
    from headrace.broker.shares.states import Burial
    from headrace.protocol.records import Headers, Record
    from headrace.protocol.slices import OpenBatch
    from headrace.storage.log import Log

TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
GROUP: Final = "__dlq.errors.group"
DELIVERIES: Final = "__dlq.errors.delivery.count"
REASON: Final = "__dlq.errors.message"
"""The headers of a dead letter have the names that Apache Kafka 4.4 gives them (KIP-1191)."""
LAST_OFFSET: Final = "headrace-errors-last-offset"
"""The end of what a letter stands for, when that is more than one record: a batch that cannot be read."""
NAMES: Final = frozenset({TOPIC, PARTITION, OFFSET, GROUP, DELIVERIES, REASON, LAST_OFFSET})

LONGEST_NAME: Final = 249
_FOREIGN = re.compile(r"[^a-zA-Z0-9._-]")


class Place(NamedTuple):
    """Where a dead letter came from; one of several records, where the last of them was."""

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
    origin = _origin(share, topic, offset, burial, burial.reason.text)
    if record is None:
        return NewRecord(None, None, 0, origin)
    kept = tuple(header for header in record.headers if header[0] not in NAMES)
    return NewRecord(record.key, record.value, 0, (*kept, *origin))


def write_unreadable(opened: OpenBatch, share: ShareKey, topic: str, last: int, burial: Burial) -> NewRecord:
    """The dead letter of all records of a batch, up to its end, that cannot be read: the batch."""
    first = opened.next_offset
    reason = (
        f"Offsets {first} to {last} cannot be read: {opened.fault}. The value is the record batch as stored."
    )
    origin = _origin(share, topic, first, burial, reason)
    return NewRecord(None, opened.data, 0, (*origin, (LAST_OFFSET, b"%d" % last)))


def _origin(share: ShareKey, topic: str, offset: int, burial: Burial, reason: str) -> Headers:
    return (
        (TOPIC, topic.encode()),
        (PARTITION, b"%d" % share.partition),
        (OFFSET, b"%d" % offset),
        (GROUP, share.group.encode()),
        (DELIVERIES, b"%d" % burial.deliveries),
        (REASON, reason.encode()),
    )


def read_places(log: Log, position: int) -> set[Place]:
    """The origins of the letters from `position` to the end; what cannot be read is no letter of ours."""
    places: set[Place] = set()
    for data in log.batches(max(position, log.start_offset)):
        for batch in split_batches(memoryview(data)):
            if not read_header(batch).is_control:
                with suppress(CorruptBatch):
                    places.update(_place(record) for record in decode_batch(batch))
    return places


def _place(record: Record) -> Place:
    headers = dict(record.headers)
    group, partition = (headers.get(name) or b"" for name in (GROUP, PARTITION))
    offset = headers.get(LAST_OFFSET) or headers.get(OFFSET) or b""
    is_letter = partition.isdigit() and offset.isdigit()
    return (
        Place(group.decode(errors="replace"), int(partition), int(offset)) if is_letter else Place("", -1, -1)
    )
