"""What share groups keep in `__share_group_state`, written and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.shares import records
from headrace.broker.shares.settings import ShareGroupConfig
from headrace.broker.statelog import StateRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.broker.shares.records import ShareKey
    from headrace.broker.shares.share import Share
    from headrace.broker.shares.states import Run
    from headrace.broker.statelog import StateLog

Pair = tuple[bytes, bytes | None]


class Stored(NamedTuple):
    """Everything that was stored."""

    groups: set[str]
    configs: dict[str, ShareGroupConfig]
    starts: dict[ShareKey, int]
    chunks: dict[ShareKey, dict[int, list[Run]]]


class ShareStore:
    """The state log of share groups."""

    def __init__(self, state: StateLog) -> None:
        self._state = state

    async def durable(self) -> None:
        """Return when all that was stored is as safe as the broker promises."""
        await self._state.durable()

    def load(self) -> Stored:
        """The latest of everything."""
        latest = {entry.key: entry.value for entry in self._state.replay() if isinstance(entry, StateRecord)}
        stored = Stored(set(), {}, {}, {})
        for data, value in latest.items():
            if value is None:
                continue
            key = records.read_key(data)
            if key.kind == records.GROUP:
                stored.groups.add(key.group)
            elif key.kind == records.CONFIG:
                stored.configs[key.group] = ShareGroupConfig.parse(records.read_config(value))
            elif key.share is not None and key.kind == records.START:
                stored.starts[key.share] = records.read_start(value)
            elif key.share is not None:
                stored.chunks.setdefault(key.share, {})[key.chunk] = records.read_runs(value)
        return stored

    def save(self, shares: Iterable[Share]) -> bool:
        """Write what has changed; False when nothing has."""
        taken = [(share, *share.state.progress.take_changes()) for share in shares]
        pairs = [pair for share, start, chunks in taken for pair in _changes(share.key, start, chunks)]
        try:
            self._append(pairs)
        except BaseException:
            for share, _, chunks in taken:
                share.state.progress.chunks.untake(chunks)
            raise
        return bool(pairs)

    def save_group(self, group: str) -> None:
        """Keep a group."""
        self._append([(records.write_group_key(group), b"{}")])

    def save_config(self, group: str, configs: Mapping[str, str]) -> None:
        """Keep a group's settings."""
        value = records.write_config(configs) if configs else None
        self._append([(records.write_group_key(group, records.CONFIG), value)])

    def forget_group(self, group: str) -> None:
        """Forget a group; its settings stay, as in Apache Kafka."""
        self._append([(records.write_group_key(group), None)])

    def forget(self, keys: Mapping[ShareKey, Iterable[int]]) -> None:
        """Forget share partitions, each with its chunks."""
        self._append([pair for key, chunks in keys.items() for pair in _tombstones(key, chunks)])

    def _append(self, pairs: Sequence[Pair]) -> None:
        if pairs:
            self._state.append(pairs)


def _changes(key: ShareKey, start: int | None, chunks: Mapping[int, Sequence[Run]]) -> Iterable[Pair]:
    if start is not None:
        yield records.write_start_key(key), records.write_start(start)
    for chunk, runs in chunks.items():
        yield records.write_chunk_key(key, chunk), records.write_runs(runs) if runs else None


def _tombstones(key: ShareKey, chunks: Iterable[int]) -> Iterable[Pair]:
    yield records.write_start_key(key), None
    for chunk in chunks:
        yield records.write_chunk_key(key, chunk), None
