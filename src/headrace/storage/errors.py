"""What the log refuses, and what it cannot do. Kafka's error codes are attached at the broker's edge."""

from headrace.errors import HeadraceError


class StorageError(HeadraceError):
    """The log could not do what was asked."""


class InvalidRecord(StorageError):
    """A batch that this topic does not take: refused before anything is stored."""


class RecordsWithoutKey(InvalidRecord):
    """A batch for a compacted topic with records that have no key."""

    def __init__(self, message: str, *, indexes: tuple[int, ...]) -> None:
        super().__init__(message)
        self.indexes = indexes
        """Which records of the batch, counted from 0; the first of them if there are many."""


class RecordTooLarge(StorageError):
    """A batch above the topic's `max.message.bytes`."""


class InvalidTimestamp(StorageError):
    """A batch whose time lies outside what the topic accepts."""


class OffsetOutOfRange(StorageError):
    """An offset before the start of the log or beyond its end."""


class DiskError(StorageError):
    """The disk refused a write; nothing of it counts as stored, and the log goes on when there is room."""


class DataFolderLocked(StorageError):
    """Another broker holds the data folder."""


class InvalidConfig(StorageError):
    """A topic setting with a name or value that the log does not know."""
