"""Batches for compacted topics whose keys take long to look for: checked off the loop, stored in order.

Every record of a compacted topic has a key, and only a walk over the records shows it. A few hundred of them
are walked where they arrive. More of them, and compressed ones, whose number of bytes is unknown, go to a
thread of their own: meanwhile others are served. Batches that arrive for the partition wait behind them, for
a producer's batches are stored in the order in which it sent them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.protocol.batch import read_header
from headrace.storage.validation import check_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor

    from headrace.broker.partition import Partition
    from headrace.protocol.produce import PartitionResult

    Store = Callable[[HeadraceError | None], Awaitable[PartitionResult]]

INLINE_RECORDS: Final = 500
"""Records that are looked at on the loop: half a millisecond."""


class KeyValidator:
    """The checks that are under way, by partition."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._last: dict[Partition, asyncio.Task[PartitionResult]] = {}

    def must_wait(self, partition: Partition, batch: memoryview) -> bool:
        """Whether a batch cannot be stored at once: its own check takes long, or that of one before it."""
        if partition in self._last:
            return True
        config = partition.log.config
        # One that is too large is refused before its keys are looked for.
        if not config.is_compacted or len(batch) > config.max_message_bytes:
            return False
        header = read_header(batch)
        return bool(header.codec) or header.count > INLINE_RECORDS

    def check(self, partition: Partition, batch: memoryview, store: Store) -> asyncio.Task[PartitionResult]:
        """What `store` gives after the keys of `batch` were looked for, and after all that came before it.

        `store` is given what is wrong with the batch, or None.
        """
        before = self._last.get(partition)
        task = asyncio.get_running_loop().create_task(self._run(partition, batch, before, store))
        self._last[partition] = task
        task.add_done_callback(partial(self._forget, partition))
        return task

    async def _run(
        self,
        partition: Partition,
        batch: memoryview,
        before: asyncio.Task[PartitionResult] | None,
        store: Store,
    ) -> PartitionResult:
        if before is not None:
            await asyncio.wait([before])
        fault: HeadraceError | None = None
        if partition.log.config.is_compacted:
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, check_keys, batch)
            except HeadraceError as found:
                fault = found
        return await store(fault)

    def _forget(self, partition: Partition, task: asyncio.Task[PartitionResult]) -> None:
        if self._last.get(partition) is task:
            del self._last[partition]
