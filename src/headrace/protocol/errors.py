"""Errors of the wire format and of record batches."""

from headrace.errors import HeadraceError


class ProtocolError(HeadraceError):
    """Bytes that do not follow the Kafka protocol."""


class CorruptBatch(ProtocolError):
    """A record batch that is incomplete, fails its checksum, or has invalid contents."""
