"""Errors of the log. The broker's handlers map them to Kafka's error codes."""

from headrace.errors import HeadraceError


class StorageError(HeadraceError):
    """An error of the log."""


class InvalidRecord(StorageError):
    """A batch that the topic does not accept."""


class RecordsWithoutKey(InvalidRecord):
    """A batch for a compacted topic with records that have no key."""

    def __init__(self, message: str, *, indexes: tuple[int, ...]) -> None:
        super().__init__(message)
        self.indexes = indexes
        """The indexes of these records in the batch; the first ones if there are many."""


class RecordTooLarge(StorageError):
    """A batch above the topic's `max.message.bytes`."""


class InvalidTimestamp(StorageError):
    """A batch with a timestamp that the topic does not accept."""


class OffsetOutOfRange(StorageError):
    """An offset before the start of the log or after its end."""


class DiskError(StorageError):
    """A write failed. Nothing of it is stored, and the log works again when the disk has space."""


class DataFolderLocked(StorageError):
    """Another broker uses the data folder."""


class InvalidConfig(StorageError):
    """An unknown topic setting, or one with an invalid value."""


class ArchiveError(StorageError):
    """The archive could not be read or written. Nothing is lost; the operation can be retried."""


class UnknownFormat(StorageError):
    """A data folder that a newer version of Headrace has written."""
