"""The partitions in memory of one broker: from where their offsets go on, and how much they may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.checkpoint import Checkpoint
from headrace.storage.errors import DiskFault, InvalidConfig
from headrace.storage.memory import MemoryLog

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.storage.config import TopicConfig

Key = tuple[str, int]


class MemoryPartitions:
    """All memory logs; on disk is one small file with the offset from which each goes on."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._ends = Checkpoint(path)
        self._path = path
        self._limit_bytes = limit_bytes
        self._logs: dict[Key, MemoryLog] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._logs

    @property
    def promised_bytes(self) -> int:
        """What all partitions together may hold."""
        return sum(log.config.retention_bytes for log in self._logs.values())

    def check_room(self, more_bytes: int) -> None:
        """Pass when partitions may hold so much more, or raise `InvalidConfig`."""
        if self.promised_bytes + more_bytes > self._limit_bytes:
            raise InvalidConfig(
                f"topics in memory may hold {self._limit_bytes} bytes together, {self.promised_bytes} of "
                f"them are promised to partitions that exist, and this needs {more_bytes} more: lower "
                "retention.bytes, use fewer partitions, or start the broker with a larger "
                "--memory-topics-bytes"
            )

    def open(self, key: Key, config: TopicConfig) -> MemoryLog:
        """An empty log, whose offsets go on where an earlier one of this partition ended."""
        start_offset = self._ends.take(key) or 0
        log = MemoryLog(config, start_offset=start_offset, reserve=lambda end: self._save({key: end}))
        self._logs[key] = log
        return log

    def delete(self, key: Key) -> None:
        """Forget a partition and its offsets: a topic of that name begins anew."""
        self._logs.pop(key).forget()
        self._save({})

    def discard(self, key: Key) -> None:
        """Forget the offsets of a partition that is not open: the broker died while it deleted the topic."""
        if self._ends.take(key) is not None:
            self._save({})

    def close(self) -> None:
        """Give back the offsets that were reserved and not used."""
        for log in self._logs.values():
            log.reserved_end = log.end_offset
        self._save({})

    def _save(self, reserved: dict[Key, int]) -> None:
        ends = {key: log.reserved_end for key, log in self._logs.items()} | reserved
        try:
            self._ends.save({key: end for key, end in ends.items() if end})
        except OSError as fault:
            raise DiskFault(
                f"{self._path} could not be written: {fault.strerror}; free some space"
            ) from fault
