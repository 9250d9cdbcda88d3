"""The partitions that take part in transactions, as the coordinator of transactions sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class OpenTransaction(NamedTuple):
    """A transaction that a partition holds open."""

    topic: str
    partition: int
    producer_id: int
    epoch: int


class Participants(Protocol):
    """The logs of all partitions; the offsets of groups are one of them."""

    def exists(self, topic: str, partition: int) -> bool:
        """Whether there is such a partition."""
        ...

    def write_marker(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int = 0,
    ) -> None:
        """End the producer's transaction in the partition; a `StorageError` when it cannot be written."""
        ...

    def open_transactions(self) -> Iterable[OpenTransaction]:
        """Every open transaction of every partition."""
        ...

    async def durable(self) -> None:
        """Return when the markers written are as durable as the broker's flush setting promises."""
        ...
