"""Compaction: a partition retains the latest record of each key, with Kafka's rules.

    plan             which segments to compact; cleaned segments replace the old ones
    compactor        the process that compacts
    cleaner          the two passes: build the offset map, then copy what is retained
    rules            which batches and records are retained
    offset_map       the latest offset of each key, in a dict
    hash_offset_map  the same in compiled code

The broker uses `plan` and `compactor`; the rest runs in the process of the compactor.
"""

from headrace.storage.compaction.plan import (
    CleanedGroup,
    CompactionRequest,
    CompactionResult,
    plan_compaction,
    recover_swaps,
    swap_in,
)

__all__ = [
    "CleanedGroup",
    "CompactionRequest",
    "CompactionResult",
    "plan_compaction",
    "recover_swaps",
    "swap_in",
]
