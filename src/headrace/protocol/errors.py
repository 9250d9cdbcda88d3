"""Faults of the bytes that a peer sent or a file held."""

from headrace.errors import HeadraceError


class ProtocolError(HeadraceError):
    """Bytes that do not follow the Kafka protocol: the peer's fault, and the end of its connection."""


class CorruptBatch(ProtocolError):
    """A record batch that is torn, fails its checksum, or lies about its contents."""
