"""Topics: their partitions and settings, their messages, and how messages are produced."""

from __future__ import annotations

import json
import operator
import re
import time
from base64 import b64encode
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from headrace.cli import topic_admin
from headrace.cli.output import RequestFailed
from headrace.cli.reader import PositionKind, read_position
from headrace.client.errors import OffsetOutOfRange
from headrace.client.fetch import UnreadableRecords, committed_records, fetch_batches
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.console.cluster import topic_sizes
from headrace.gateway.app import check_name, check_topic
from headrace.gateway.errors import HttpError
from headrace.gateway.producer import ANY_PARTITION, OutgoingRecord, RejectedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.cli.session import BrokerSession
    from headrace.client.cluster import Cluster
    from headrace.console.app import Context
    from headrace.gateway.identity import Identity
    from headrace.protocol.records import Record

MAX_MESSAGES: Final = 500
MAX_SCANNED: Final = 200_000
MAX_SEARCH_S: Final = 4.0
"""How long one request searches; the answer says where the next one continues."""
MAX_SHOWN_BYTES: Final = 16 << 10
"""Longer values are cut."""
MAX_ANSWER_BYTES: Final = 4 << 20
NEWEST: Final = "newest"


def list_topics(context: Context) -> dict[str, Any]:
    """All topics with the number of their records."""
    listings = topic_admin.list_topics(context.session)
    cluster = context.session.cluster
    known = cluster.topics()
    partitions = [TopicPartition(each.name, number) for each in known.values() for number in each.partitions]
    first, end = (
        list_offsets(cluster, dict.fromkeys(partitions, which), read_committed=False)
        for which in (EARLIEST, LATEST)
    )
    held: dict[str, int] = dict.fromkeys(known, 0)
    ends: dict[str, int] = dict.fromkeys(known, 0)
    for partition in partitions:
        held[partition.topic] += end[partition] - first[partition]
        ends[partition.topic] += end[partition]
    return {
        "topics": [
            {
                "topic": each.topic,
                "partitions": each.partitions,
                "replicas": each.replicas,
                "records": held.get(each.topic, 0),
                "end": ends.get(each.topic, 0),
                "kind": _kind(each.topic, known),
            }
            for each in listings
        ]
    }


def _kind(topic: str, known: Mapping[str, Any]) -> str:
    if topic_admin.is_internal(topic):
        return "internal"
    if topic.endswith(".dead") or ".dead." in topic:
        return "dead letters"
    store = topic.rpartition(".")[0]
    return "events" if topic == f"{store}.events" and f"{store}.snapshots" in known else "topic"


def describe_topic(context: Context) -> dict[str, Any]:
    """The partitions of a topic with their offsets and sizes, and its settings."""
    session, topic = context.session, check_name(context.path["topic"])
    places = topic_admin.find_partitions(session, topic)
    numbers = [place.partition for place in places]
    keys = [TopicPartition(topic, number) for number in numbers]
    first, end = (
        list_offsets(session.cluster, dict.fromkeys(keys, which), read_committed=False)
        for which in (EARLIEST, LATEST)
    )
    sizes = topic_sizes(session, topic, numbers)
    return {
        "topic": topic,
        "partitions": [
            {
                "partition": place.partition,
                "leader": place.leader,
                "replicas": place.replicas,
                "in_sync": place.in_sync,
                "start": first[key],
                "end": end[key],
                "bytes": sizes.get(place.partition),
            }
            for place, key in zip(places, keys, strict=True)
        ],
        "settings": _settings(session, topic),
    }


def _settings(session: BrokerSession, topic: str) -> list[topic_admin.TopicSetting]:
    try:
        return topic_admin.read_configs(session, topic)
    except RequestFailed:  # a user may not be allowed to read settings
        return []


def create_topic(context: Context, body: dict[str, Any]) -> dict[str, Any]:
    """Create a topic."""
    topic, partitions, configs = body.get("topic"), body.get("partitions"), body.get("settings") or {}
    if not isinstance(topic, str) or not isinstance(partitions, int | None) or not isinstance(configs, dict):
        raise HttpError(HTTPStatus.BAD_REQUEST, "use topic, partitions and settings")
    topic_admin.create_topic(
        context.session,
        check_topic(topic),
        partitions=partitions,
        replicas=None,
        configs={str(name): str(value) for name, value in configs.items()},
    )
    return {"topic": topic}


async def produce(identity: Identity, topic: str, body: dict[str, Any]) -> dict[str, Any]:
    """Store one record: key, value and headers are texts, and null where they are missing."""
    texts = {name: body.get(name) for name in ("key", "value")}
    headers, partition = body.get("headers") or {}, body.get("partition")
    if (
        not all(isinstance(text, str | None) for text in texts.values())
        or not isinstance(headers, dict)
        or not all(isinstance(text, str | None) for text in headers.values())
        or not isinstance(partition, int | None)
    ):
        raise HttpError(HTTPStatus.BAD_REQUEST, "key, value and headers are texts, and partition is a number")
    record = OutgoingRecord(
        value=None if texts["value"] is None else texts["value"].encode(),
        key=None if texts["key"] is None else texts["key"].encode(),
        partition=ANY_PARTITION if partition is None else partition,
        headers=[(name, None if text is None else text.encode()) for name, text in headers.items()],
    )
    (result,) = await identity.producer.send(check_topic(topic), [record])
    if isinstance(result, RejectedRecord):
        raise result.error()
    return {"partition": result.partition, "offset": result.offset}


# --------------------------------------------------------------------------------------------------- messages


def find_messages(context: Context) -> dict[str, Any]:
    """Committed records of a topic from a position on, or the newest ones, that pass a filter.

    `next` is where another request continues, forwards or, from the newest on, backwards.
    """
    topic = check_name(context.path["topic"])
    places = topic_admin.find_partitions(context.session, topic)
    numbers = [place.partition for place in places]
    if context.query.get("partition"):
        wanted = context.number("partition", 0, (1 << 31) - 1)
        if wanted not in numbers:
            raise HttpError(HTTPStatus.NOT_FOUND, f"the topic {topic!r} has no partition {wanted}")
        numbers = [wanted]
    search = MessageSearch(
        context.session.cluster,
        topic,
        numbers,
        matches=parse_filter(context.query.get("filter", "")),
        limit=max(1, context.number("limit", 50, MAX_MESSAGES)),
    )
    start, token = context.query.get("from") or NEWEST, context.query.get("next")
    if start == NEWEST:
        return search.backwards(None if not token else _parse_token(token))
    try:
        return search.forwards(_parse_token(token) if token else search.resolve(start))
    except ValueError as fault:
        raise HttpError(HTTPStatus.BAD_REQUEST, str(fault)) from None


class MessageSearch:
    """A bounded search through the records of some partitions."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        numbers: list[int],
        *,
        matches: Callable[[Record], bool],
        limit: int,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._keys = [TopicPartition(topic, number) for number in numbers]
        self._matches = matches
        self._limit = limit
        self._deadline = time.monotonic() + MAX_SEARCH_S
        self._scanned = 0
        self._unreadable = 0
        self._first = list_offsets(cluster, dict.fromkeys(self._keys, EARLIEST))
        self._end = list_offsets(cluster, dict.fromkeys(self._keys, LATEST))

    def resolve(self, text: str) -> dict[int, int]:
        """The offsets of a position: start, end, an offset, a time, or a time ago."""
        position = read_position(text)
        if position.kind is PositionKind.START:
            found = self._first
        elif position.kind is PositionKind.END:
            found = self._end
        elif position.kind is PositionKind.OFFSET:
            found = dict.fromkeys(self._keys, position.value)
        else:
            found = list_offsets(self._cluster, dict.fromkeys(self._keys, position.value))
            found = {key: self._end[key] if offset < 0 else offset for key, offset in found.items()}
        return {
            key.partition: min(max(offset, self._first[key]), self._end[key]) for key, offset in found.items()
        }

    def forwards(self, offsets: dict[int, int]) -> dict[str, Any]:
        """Records from these offsets on."""
        at = {
            key: min(max(offsets.get(key.partition, 0), self._first[key]), self._end[key])
            for key in self._keys
        }
        found: list[tuple[int, Record]] = []
        for key, record in self._read(at, self._end):
            if self._matches(record):
                found.append((key.partition, record))
                if len(found) == self._limit:
                    break
        left = sum(self._end[key] - offset for key, offset in at.items())
        return self._answer(found, {key.partition: offset for key, offset in at.items()}, left)

    def backwards(self, ends: dict[int, int] | None) -> dict[str, Any]:
        """The newest records before these offsets, the newest first."""
        start = {
            key: min((ends or {}).get(key.partition, self._end[key]), self._end[key]) for key in self._keys
        }
        upper, span = start, self._limit
        found: list[tuple[int, Record]] = []
        while len(found) < self._limit and any(upper[key] > self._first[key] for key in self._keys):
            lower = {key: max(self._first[key], upper[key] - span) for key in self._keys}
            window = [
                (key.partition, record)
                for key, record in self._read(dict(lower), upper)
                if self._matches(record)
            ]
            if self._is_exhausted() and upper is not start:
                break  # the newest records of the window may be missing: the next request reads it again
            found += window
            upper, span = lower, span * 4
        found.sort(key=lambda each: (each[1].timestamp, each[1].offset), reverse=True)
        cut = {number for number, _ in found[self._limit :]}
        del found[self._limit :]
        shown: dict[int, int] = {}
        for number, record in found:
            shown[number] = min(shown.get(number, record.offset), record.offset)
        following = {
            key.partition: shown.get(key.partition, start[key])
            if key.partition in cut or key.partition in shown
            else upper[key]
            for key in self._keys
        }
        left = sum(max(0, following[key.partition] - self._first[key]) for key in self._keys)
        return self._answer(found, following, left)

    def _read(
        self, at: dict[TopicPartition, int], until: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, Record]]:
        """The records of a range; `at` is kept at the offset after the last record that was read."""
        while not self._is_exhausted():
            wanted = {key: offset for key, offset in at.items() if offset < until[key]}
            if not wanted:
                return
            try:
                fetched = fetch_batches(self._cluster, wanted, max_wait_ms=100)
            except OffsetOutOfRange:  # retention has deleted records since
                self._first = list_offsets(self._cluster, dict.fromkeys(self._keys, EARLIEST))
                at.update({key: max(at[key], self._first[key]) for key in self._keys})
                continue
            if not fetched:  # only marks of transactions, or compacted offsets, are left
                at.update({key: until[key] for key in wanted})
                return
            for part in fetched:
                key = part.partition
                for record in committed_records(key, part.batches, part.aborted):
                    if isinstance(record, UnreadableRecords):
                        self._unreadable += record.last + 1 - max(record.first, at[key])
                    elif at[key] <= record.offset < until[key]:
                        self._scanned += 1
                        at[key] = record.offset + 1
                        yield key, record
                at[key] = min(part.next_offset, until[key])

    def _is_exhausted(self) -> bool:
        return self._scanned >= MAX_SCANNED or time.monotonic() > self._deadline

    def _answer(
        self, found: list[tuple[int, Record]], following: Mapping[int, int], left: int
    ) -> dict[str, Any]:
        messages, size = [], 0
        for number, record in found:
            messages.append(show_record(number, record))
            size += len(messages[-1]["value"] or "")
            if size > MAX_ANSWER_BYTES:
                break
        return {
            "messages": messages,
            "next": ",".join(f"{number}:{offset}" for number, offset in following.items()) if left else None,
            "left": left,
            "scanned": self._scanned,
            "unreadable": self._unreadable,
            "exhausted": self._is_exhausted() and len(found) < self._limit,
        }


def _parse_token(token: str) -> dict[int, int]:
    try:
        pairs = [part.partition(":") for part in token[:64_000].split(",")]
        return {int(number): int(offset) for number, _, offset in pairs}
    except ValueError:
        raise HttpError(HTTPStatus.BAD_REQUEST, "next is not what an earlier answer said") from None


def show_record(number: int, record: Record) -> dict[str, Any]:
    """A record for the page. Binary content is base64; long content is cut."""
    value, encoding, is_cut = _shown(record.value)
    key, key_encoding, _ = _shown(record.key)
    return {
        "partition": number,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "key_encoding": key_encoding,
        "value": value,
        "encoding": encoding,
        "cut": is_cut,
        "bytes": len(record.value or b""),
        "headers": [[name, _shown(content)[0]] for name, content in record.headers],
    }


def _shown(data: bytes | None) -> tuple[str | None, str, bool]:
    if data is None:
        return None, "null", False
    is_cut = len(data) > MAX_SHOWN_BYTES
    part = bytes(data[:MAX_SHOWN_BYTES])
    try:
        text = part.decode()
    except UnicodeDecodeError as fault:
        if not (is_cut and fault.start >= len(part) - 3):
            return b64encode(part).decode(), "base64", is_cut
        text = part[: fault.start].decode()
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return text, "text", is_cut
    return text, "json", is_cut


# ---------------------------------------------------------------------------------------------------- filters

COMPARISON: Final = re.compile(r"(?P<path>[A-Za-z_][\w.-]*)(?P<sign>!=|>=|<=|=|>|<|~)(?P<value>.*)")
TERMS: Final = re.compile(r'(?:[^\s"]|"[^"]*")+')
SIGNS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
    ">=": operator.ge, "<=": operator.le,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a filter: `key=tea`, `header.trace=1`, `amount>10`, or a text that is anywhere."""

    path: tuple[str, ...]
    sign: str
    value: str

    def holds(self, record: Record) -> bool:
        """Whether a record fulfills the condition."""
        if not self.path:
            parts = (record.key, record.value, *(content for _, content in record.headers))
            wanted = self.value.lower().encode()
            return any(part is not None and wanted in bytes(part).lower() for part in parts)
        if self.path in (("key",), ("value",)):
            return self._compare(_text_of(record.key if self.path == ("key",) else record.value))
        if self.path[0] == "header":
            name = ".".join(self.path[1:])
            return any(self._compare(_text_of(content)) for key, content in record.headers if key == name)
        return self._holds_field(record)

    def _holds_field(self, record: Record) -> bool:
        try:
            found = json.loads(record.value or b"null")
        except (ValueError, RecursionError):
            return False
        for name in self.path:
            if not isinstance(found, dict) or name not in found:
                return self.sign == "!="
            found = found[name]
        return self._compare(found)

    def _compare(self, found: Any) -> bool:
        if isinstance(found, bool) or found is None or isinstance(found, dict | list):
            found = json.dumps(found)
        if self.sign == "~":
            return self.value.lower() in str(found).lower()
        if isinstance(found, int | float):
            try:
                return SIGNS[self.sign](found, float(self.value))
            except ValueError:
                return self.sign == "!="
        return SIGNS[self.sign](found, self.value)


def parse_filter(text: str) -> Callable[[Record], bool]:
    """A test of records: all terms of the text have to hold.

    A term is a text that key, value or a header contains, or a comparison with a field of a JSON value, with
    `key`, `value` or `header.NAME`: `=`, `!=`, `<`, `<=`, `>`, `>=`, and `~` for "contains".
    """
    terms = []
    for part in TERMS.findall(text[:2_000]):
        match = COMPARISON.fullmatch(part)
        if match is None:
            terms.append(Term((), "~", part.replace('"', "")))
        else:
            terms.append(Term(tuple(match["path"].split(".")), match["sign"], match["value"].strip('"')))
    return lambda record: all(term.holds(record) for term in terms)


def _text_of(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode(errors="replace")
