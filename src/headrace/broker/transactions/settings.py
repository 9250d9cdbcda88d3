"""Settings of transactions, with the names of Kafka's documentation."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Timeouts of transactions and the intervals of their checks."""

    max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`: the largest transaction timeout that a producer may have."""
    expiration_ms: int = 604_800_000
    """`transactional.id.expiration.ms`: an unused transactional id is removed after this time."""
    timeout_check_interval_ms: int = 1_000
    """`transaction.abort.timed.out.transaction.cleanup.interval.ms`; Apache Kafka's default is 10,000."""
    cleanup_interval_ms: int = 60_000
    """How often expired transactional ids and transactions without an owner are removed."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise HeadraceError(f"{name} is {getattr(self, name)}: it must be positive")
