"""Errors between a client and a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

    from headrace.client.partition import TopicPartition


class BrokerUnreachable(HeadraceError):
    """No broker answers at the address, or it stopped answering."""


class UnsupportedApi(HeadraceError):
    """The broker does not serve the version of an API that the client speaks."""


class BadResponse(HeadraceError):
    """The broker's answer does not follow the Kafka protocol."""


class ConnectionShared(HeadraceError):
    """A second thread used a connection while another one was in the middle of a request."""


class RequestRefused(HeadraceError):
    """The broker understood the request and refused it with a Kafka error code."""

    def __init__(self, act: str, code: ErrorCode, detail: str | None = None) -> None:
        super().__init__(f"the broker refused to {act}: {detail or code.name} (Kafka error {code.value})")
        self.code = code


class UnknownTopic(HeadraceError):
    """A topic that the cluster does not have."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"the topic {topic!r} does not exist: check its name, or create it with "
            f"`headrace topic create {topic}`"
        )
        self.topic = topic


class UnknownPartition(HeadraceError):
    """A partition that the cluster does not have."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(
            f"the cluster has no partition {partition.partition} of the topic {partition.topic!r}: "
            "the topic was deleted, or never created. Check its name, or create it."
        )
        self.partition = partition


class ReadStalled(HeadraceError):
    """A partition that gave nothing for as long as the client is willing to wait."""


class OffsetsGone(HeadraceError):
    """Offsets that were to be read and that the partition does not hold: data was lost to the reader."""

    def __init__(self, partition: TopicPartition, wanted: int, first: int, end: int) -> None:
        why = (
            "retention or a deletion removed them before they were read"
            if wanted < first
            else "the topic was made anew, or a broker lost its end"
        )
        super().__init__(
            f"offset {wanted} of {partition} is gone: the partition holds {first} to {end}; {why}. "
            "Start from an offset that is there, and keep records longer than the longest stop of a reader."
        )
        self.partition = partition
        self.wanted = wanted
        self.first = first
        self.end = end


class Fenced(HeadraceError):
    """A writer whose transactional id belongs to somebody else by now: nothing that it writes counts."""
