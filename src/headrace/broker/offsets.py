"""Committed offsets of all groups, and pending offsets of transactions.

Both are stored in `__consumer_offsets`. A commit takes effect when it is in the log. Offsets of a transaction
are appended with its producer id, and are pending until the transaction's marker applies or drops all of
them. Of two commits for a partition the later one in the log wins, regardless of when its transaction ended,
so that a replay of the log has the same result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from headrace.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    read_key,
    read_offset,
    write_offset,
    write_offset_key,
)
from headrace.broker.state_log import StateMarker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from headrace.broker.clock import BrokerClock
    from headrace.broker.groups.settings import GroupSettings
    from headrace.broker.state_log import Producer, StateLog, StateRecord

TopicPartition = tuple[str, int]

DELETES_PER_STEP: Final = 200
"""Offsets that are deleted in one step: about a millisecond."""


class CommitRules(Protocol):
    """Decides which clients may commit; implemented by the group coordinator."""

    def check_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> ErrorCode:
        """Whether this client may commit; a commit without a generation creates a missing group."""
        ...


class _Entry(NamedTuple):
    sequence: int
    """Its position in the order of the log."""
    committed: CommittedOffset


class CommittedOffsets:
    """The offsets of all groups, in memory and in the log."""

    def __init__(self, state: StateLog, clock: BrokerClock, settings: GroupSettings) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._rules: CommitRules | None = None
        self._on_change: Callable[[OffsetKey], None] = lambda _key: None
        self._reset()

    def _reset(self) -> None:
        self._committed: dict[str, dict[TopicPartition, _Entry]] = {}
        self._pending: dict[int, dict[OffsetKey, _Entry]] = {}
        self._sequence = 0

    def set_commit_rules(self, rules: CommitRules) -> None:
        """Use `rules` to decide which clients may commit; the group coordinator calls this."""
        self._rules = rules

    def on_change(self, callback: Callable[[OffsetKey], None]) -> None:
        """Call `callback` whenever a committed offset changes or is deleted."""
        self._on_change = callback

    # Lifecycle

    def load(self) -> None:
        """Restore the offsets from the log. `GroupCoordinator.load` does that as well, with the groups."""
        self._reset()
        for entry in self._state.replay():
            self.replay(entry)

    def replay(self, entry: StateRecord | StateMarker) -> None:
        """Apply one entry of the log; entries that are not offsets are ignored."""
        if isinstance(entry, StateMarker):
            self.complete(entry.producer.producer_id, committed=entry.committed)
            return
        key = read_key(entry.key)
        if isinstance(key, OffsetKey):
            committed = None if entry.value is None else read_offset(entry.value)
            self._apply(key, committed, entry.producer)

    def begin_replay(self) -> None:
        """Remove all offsets before the log is replayed."""
        self._reset()

    def close(self) -> None:
        """Do nothing: everything is in the log."""

    async def durable(self) -> None:
        """Return when all commits are as durable as the flush setting promises."""
        await self._state.durable()

    # Reading

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The committed offset of the group, or None if it has none."""
        entry = self._committed.get(group_id, {}).get((topic, partition))
        return None if entry is None else entry.committed

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All committed offsets of the group."""
        return {where: entry.committed for where, entry in self._committed.get(group_id, {}).items()}

    def group_ids(self) -> set[str]:
        """The groups with committed or pending offsets."""
        return self._committed.keys() | {key.group_id for keys in self._pending.values() for key in keys}

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset of this partition."""
        key = OffsetKey(group_id, topic, partition)
        return any(key in keys for keys in self._pending.values())

    def has_pending(self, group_id: str) -> bool:
        """Whether an open transaction has offsets of this group."""
        return any(key.group_id == group_id for keys in self._pending.values() for key in keys)

    # Writing

    def accepts_metadata(self, metadata: str | None) -> bool:
        """Whether the metadata is short enough, in characters as in Apache Kafka."""
        return len(metadata or "") <= self._settings.offset_metadata_max_bytes

    def commit(self, group_id: str, entries: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit offsets; the caller has validated group, member and partitions."""
        self._write({OffsetKey(group_id, *where): committed for where, committed in entries.items()})

    def delete(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed and pending offsets."""
        keys = (OffsetKey(group_id, *where) for where in partitions)
        self._delete([key for key in keys if self._holds(key)])

    def delete_group_steps(self, group_id: str) -> Generator[None, None, None]:
        """Delete all offsets of a group; yields between steps."""
        yield from self._delete_steps([OffsetKey(group_id, *where) for where in self._of_group(group_id)])
        for keys in tuple(self._pending.values()):
            yield from self._delete_steps([key for key in keys if key.group_id == group_id])

    def delete_topic_steps(self, topic: str) -> Generator[None, None, None]:
        """Delete all offsets of a topic, so that a new topic with its name has none; yields between steps."""
        for group_id in tuple(self._committed):
            partitions = [where for where in self._of_group(group_id) if where[0] == topic]
            yield from self._delete_steps([OffsetKey(group_id, *where) for where in partitions])
        for keys in tuple(self._pending.values()):
            yield from self._delete_steps([key for key in keys if key.topic == topic])

    # Transactions

    def check_transactional_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode:
        """Whether this client may commit offsets of the group in a transaction."""
        if not group_id:
            return ErrorCode.invalid_group_id
        if self._rules is None:
            return ErrorCode.coordinator_not_available
        return self._rules.check_commit(group_id, member_id, generation, instance_id, transactional=True)

    def add_pending(
        self, producer: Producer, group_id: str, entries: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Add offsets that are committed with the producer's transaction."""
        self._write(
            {OffsetKey(group_id, *where): committed for where, committed in entries.items()}, producer
        )

    def complete(self, producer_id: int, *, committed: bool) -> None:
        """Commit or drop the producer's pending offsets; the transaction's marker is in the log."""
        for key, entry in self._pending.pop(producer_id, {}).items():
            if committed:
                self._set_committed(key, entry)

    # State

    def _write(
        self, entries: Mapping[OffsetKey, CommittedOffset | None], producer: Producer | None = None
    ) -> None:
        if not entries:
            return
        self._state.append(
            [
                (write_offset_key(key), None if committed is None else write_offset(committed))
                for key, committed in entries.items()
            ],
            producer,
        )
        for key, committed in entries.items():
            self._apply(key, committed, producer)

    def _delete(self, keys: Iterable[OffsetKey]) -> None:
        self._write(dict.fromkeys(keys))

    def _delete_steps(self, keys: Sequence[OffsetKey]) -> Generator[None, None, None]:
        for first in range(0, len(keys), DELETES_PER_STEP):
            self._delete(keys[first : first + DELETES_PER_STEP])
            yield
        yield

    def _of_group(self, group_id: str) -> Mapping[TopicPartition, _Entry]:
        return self._committed.get(group_id, {})

    def _apply(self, key: OffsetKey, committed: CommittedOffset | None, producer: Producer | None) -> None:
        self._sequence += 1
        if committed is None:
            self._remove(key)
        elif producer is None:
            self._set_committed(key, _Entry(self._sequence, committed))
        else:
            self._pending.setdefault(producer.producer_id, {})[key] = _Entry(self._sequence, committed)

    def _set_committed(self, key: OffsetKey, entry: _Entry) -> None:
        of_group = self._committed.setdefault(key.group_id, {})
        where = (key.topic, key.partition)
        present = of_group.get(where)
        if present is None or present.sequence < entry.sequence:
            of_group[where] = entry
            self._on_change(key)

    def _remove(self, key: OffsetKey) -> None:
        of_group = self._committed.get(key.group_id, {})
        of_group.pop((key.topic, key.partition), None)
        if not of_group:
            self._committed.pop(key.group_id, None)
        for keys in self._pending.values():
            keys.pop(key, None)
        self._on_change(key)

    def _holds(self, key: OffsetKey) -> bool:
        is_committed = (key.topic, key.partition) in self._committed.get(key.group_id, {})
        return is_committed or any(key in keys for keys in self._pending.values())
