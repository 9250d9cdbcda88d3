"""Compaction: a partition keeps the latest record of each key, with Kafka's rules.

    request   requests to the compactor and its results, as data
    cleaner   the two passes: build the offset map, then copy what is retained
    rules     which batches and records are retained; `outcome` applies the rules to one batch
    keys      the offset map: the latest offset of each key, in a dict or in compiled code (`keytable`)
    segments  segments as compaction reads and writes them
    swap      cleaned files replace the old ones

The broker's process uses `request` and `swap`; the rest runs in a process of its own, `storage.compactor`.
"""

from headrace.storage.compaction.request import CleanedGroup, CompactionRequest, CompactionResult
from headrace.storage.compaction.swap import recover_swaps, swap_in

__all__ = ["CleanedGroup", "CompactionRequest", "CompactionResult", "recover_swaps", "swap_in"]
