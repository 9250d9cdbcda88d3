"""Transactions: writes to several partitions, with consumed offsets, that count together or not at all.

transaction    the life of one transactional id, as decisions without I/O
table          every transactional id, in memory and in the state log; `records` are its formats
participants   the partitions, as the coordinator sees them; `log_participants` are the broker's own
coordinator    carries out what was decided, and looks after time-outs and crashes
"""

from headrace.broker.transactions.coordinator import Transactions
from headrace.broker.transactions.settings import TransactionSettings

__all__ = ["TransactionSettings", "Transactions"]
