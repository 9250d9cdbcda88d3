"""Where every group goes on reading: committed offsets, and those that wait for the end of a transaction.

Both live in `__consumer_offsets`. A commit is appended there first and counts once it is in the log. Offsets
of a transaction are appended under its producer; they are pending until the transaction's marker, which
applies them all or drops them all. Of two commits for one partition the later in the log wins, whenever its
transaction ended, so that a replay of the log comes to the same result.
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

    from headrace.broker.clock import Clock
    from headrace.broker.groups.settings import GroupSettings
    from headrace.broker.state_log import Producer, StateLog, StateRecord

TopicPartition = tuple[str, int]

FORGET_AT_ONCE: Final = 200
"""Offsets that are forgotten in one step: about a millisecond."""


class CommitRules(Protocol):
    """Who may commit: what the offsets ask of the groups."""

    def check_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> ErrorCode:
        """Whether this client may commit; a group without members is made when it is missing."""
        ...


class _Entry(NamedTuple):
    sequence: int
    """Its place in the order of the log."""
    committed: CommittedOffset


class Offsets:
    """The offsets of all groups; in memory, and in the log when a method returns."""

    def __init__(self, state: StateLog, clock: Clock, settings: GroupSettings) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._rules: CommitRules | None = None
        self._moved: Callable[[OffsetKey], None] = lambda _key: None
        self._reset()

    def _reset(self) -> None:
        self._committed: dict[str, dict[TopicPartition, _Entry]] = {}
        self._pending: dict[int, dict[OffsetKey, _Entry]] = {}
        self._sequence = 0

    def follow(self, rules: CommitRules) -> None:
        """Ask `rules` who may commit; the groups introduce themselves when they are made."""
        self._rules = rules

    def watch(self, moved: Callable[[OffsetKey], None]) -> None:
        """Have `moved` called when a group has moved in a partition, or has let go of it."""
        self._moved = moved

    # Life

    def load(self) -> None:
        """Come to the state that the log describes; `GroupCoordinator.load` does it too, in its own pass."""
        self._reset()
        for entry in self._state.replay():
            self.replay(entry)

    def replay(self, entry: StateRecord | StateMarker) -> None:
        """Apply one entry of the log; what is not about offsets is passed over."""
        if isinstance(entry, StateMarker):
            self.complete(entry.producer.producer_id, committed=entry.committed)
            return
        key = read_key(entry.key)
        if isinstance(key, OffsetKey):
            committed = None if entry.value is None else read_offset(entry.value)
            self._apply(key, committed, entry.producer)

    def begin_replay(self) -> None:
        """Forget everything, because the log is about to be replayed."""
        self._reset()

    def close(self) -> None:
        """Nothing is left to do: the log has everything."""

    async def durable(self) -> None:
        """Return when every commit so far is as durable as the broker's flush setting promises."""
        await self._state.durable()

    # Reading

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The offset that the group committed last."""
        entry = self._committed.get(group_id, {}).get((topic, partition))
        return None if entry is None else entry.committed

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Everything that the group committed."""
        return {where: entry.committed for where, entry in self._committed.get(group_id, {}).items()}

    def group_ids(self) -> set[str]:
        """The groups that have offsets, pending ones included."""
        return self._committed.keys() | {key.group_id for keys in self._pending.values() for key in keys}

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that has not ended holds an offset of this partition."""
        key = OffsetKey(group_id, topic, partition)
        return any(key in keys for keys in self._pending.values())

    def has_pending(self, group_id: str) -> bool:
        """Whether a transaction that has not ended holds offsets of this group."""
        return any(key.group_id == group_id for keys in self._pending.values() for key in keys)

    # Writing

    def accepts_metadata(self, metadata: str | None) -> bool:
        """Whether a note is short enough to be kept; counted in characters, as Kafka does."""
        return len(metadata or "") <= self._settings.offset_metadata_max_bytes

    def commit(self, group_id: str, entries: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Keep these offsets; the caller has checked that the group, the member and the partitions exist."""
        self._write({OffsetKey(group_id, *where): committed for where, committed in entries.items()})

    def delete(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget these offsets, pending ones too."""
        keys = (OffsetKey(group_id, *where) for where in partitions)
        self._forget([key for key in keys if self._holds(key)])

    def forget_group_steps(self, group_id: str) -> Generator[None, None, None]:
        """Forget all offsets of a group; yields between two parts of them."""
        yield from self._forget_steps([OffsetKey(group_id, *where) for where in self._of_group(group_id)])
        for keys in tuple(self._pending.values()):
            yield from self._forget_steps([key for key in keys if key.group_id == group_id])

    def forget_topic_steps(self, topic: str) -> Generator[None, None, None]:
        """Forget all offsets of a deleted topic, so that a new one of that name has none; yields as above."""
        for group_id in tuple(self._committed):
            places = [where for where in self._of_group(group_id) if where[0] == topic]
            yield from self._forget_steps([OffsetKey(group_id, *where) for where in places])
        for keys in tuple(self._pending.values()):
            yield from self._forget_steps([key for key in keys if key.topic == topic])

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
        """Keep offsets that count when the producer's transaction commits."""
        self._write(
            {OffsetKey(group_id, *where): committed for where, committed in entries.items()}, producer
        )

    def complete(self, producer_id: int, *, committed: bool) -> None:
        """Apply the producer's pending offsets or drop them; its marker is in the log already."""
        for key, entry in self._pending.pop(producer_id, {}).items():
            if committed:
                self._settle(key, entry)

    # Memory

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

    def _forget(self, keys: Iterable[OffsetKey]) -> None:
        self._write(dict.fromkeys(keys))

    def _forget_steps(self, keys: Sequence[OffsetKey]) -> Generator[None, None, None]:
        for first in range(0, len(keys), FORGET_AT_ONCE):
            self._forget(keys[first : first + FORGET_AT_ONCE])
            yield
        yield

    def _of_group(self, group_id: str) -> Mapping[TopicPartition, _Entry]:
        return self._committed.get(group_id, {})

    def _apply(self, key: OffsetKey, committed: CommittedOffset | None, producer: Producer | None) -> None:
        self._sequence += 1
        if committed is None:
            self._remove(key)
        elif producer is None:
            self._settle(key, _Entry(self._sequence, committed))
        else:
            self._pending.setdefault(producer.producer_id, {})[key] = _Entry(self._sequence, committed)

    def _settle(self, key: OffsetKey, entry: _Entry) -> None:
        of_group = self._committed.setdefault(key.group_id, {})
        where = (key.topic, key.partition)
        present = of_group.get(where)
        if present is None or present.sequence < entry.sequence:
            of_group[where] = entry
            self._moved(key)

    def _remove(self, key: OffsetKey) -> None:
        of_group = self._committed.get(key.group_id, {})
        of_group.pop((key.topic, key.partition), None)
        if not of_group:
            self._committed.pop(key.group_id, None)
        for keys in self._pending.values():
            keys.pop(key, None)
        self._moved(key)

    def _holds(self, key: OffsetKey) -> bool:
        is_committed = (key.topic, key.partition) in self._committed.get(key.group_id, {})
        return is_committed or any(key in keys for keys in self._pending.values())
