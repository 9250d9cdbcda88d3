"""Transactions: records and offsets in many partitions that are committed or aborted together.

`transaction` holds the decisions, `TransactionCoordinator` carries them out.
"""

from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.transaction import TransactionSettings

__all__ = ["TransactionCoordinator", "TransactionSettings"]
