"""Compaction: a partition keeps the latest record of each key, with Kafka's rules.

    request   what is asked, and what came of it, as data
    cleaner   the two passes: note the latest offset of each key, then copy what stays
    rules     which batches and records stay; `outcome` applies them to one batch
    keys      the latest offset of each key, as a dict (`keydict`) or in compiled code (`keytable`)
    source, target   segments as they are read and written
    swap      the cleaned files take the place of the old ones

The broker's process uses `request` and `swap`; the rest runs in a process of its own, `storage.compactor`.
"""

from headrace.storage.compaction.request import CleanedGroup, CompactionRequest, CompactionResult
from headrace.storage.compaction.swap import recover_swaps, swap_in

__all__ = ["CleanedGroup", "CompactionRequest", "CompactionResult", "recover_swaps", "swap_in"]
