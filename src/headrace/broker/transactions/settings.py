"""The limits and times of transactions."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """How long transactions may last, and how often the broker looks after them."""

    max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`: the longest time-out that a producer may ask for."""
    expiration_ms: int = 604_800_000
    """`transactional.id.expiration.ms`: after this time without use a transactional id is forgotten."""
    sweep_ms: int = 1_000
    """How often time-outs are looked for; Kafka's default is ten seconds."""
    housekeeping_ms: int = 60_000
    """How often expired ids and transactions that nobody owns are looked for."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise HeadraceError(
                    f"{name} is {getattr(self, name)}: give a positive number of milliseconds"
                )
