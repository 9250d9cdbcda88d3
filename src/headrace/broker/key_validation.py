"""Key validation of batches for compacted topics, in a thread if it takes long.

Every record of a compacted topic needs a key, which only parsing the records can show. Batches of up to
`INLINE_RECORDS` records are parsed on the event loop; larger and compressed batches, whose size is unknown,
in a thread. Later batches for the partition wait for them: batches of a producer must be stored in order.
They also wait for a batch that is so large that it is written in steps.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.protocol.batch import read_header
from headrace.storage.log import check_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from concurrent.futures import Executor

    from headrace.broker.topics import Partition
    from headrace.protocol.produce import PartitionResult

    Store = Callable[[HeadraceError | None], Awaitable[PartitionResult]]

INLINE_RECORDS: Final = 500
"""Records that are parsed on the event loop: about half a millisecond."""


class KeyValidator:
    """The validations in progress, by partition."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._last: dict[Partition, asyncio.Future[PartitionResult]] = {}

    def must_wait(self, partition: Partition, batch: memoryview) -> bool:
        """Whether a batch cannot be stored at once because its validation, or an earlier one, takes long."""
        if partition in self._last:
            return True
        config = partition.log.config
        # A batch that is too large is rejected without parsing it.
        if not config.is_compacted or len(batch) > config.max_message_bytes:
            return False
        header = read_header(batch)
        return bool(header.codec) or header.count > INLINE_RECORDS

    def check(self, partition: Partition, batch: memoryview, store: Store) -> asyncio.Task[PartitionResult]:
        """Validate the keys of `batch` after those of earlier batches; returns the result of `store`.

        `store` receives the validation error, or None.
        """
        before = self._last.get(partition)
        task = asyncio.get_running_loop().create_task(self._run(partition, batch, before, store))
        self._last[partition] = task
        task.add_done_callback(partial(self._forget, partition))
        return task

    @contextmanager
    def holding(self, partition: Partition) -> Iterator[None]:
        """Let later batches for the partition wait; for a batch that does not have to wait itself."""
        held = asyncio.get_running_loop().create_future()
        self._last[partition] = held
        try:
            yield
        finally:
            self._forget(partition, held)
            held.cancel()

    async def _run(
        self,
        partition: Partition,
        batch: memoryview,
        before: asyncio.Future[PartitionResult] | None,
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

    def _forget(self, partition: Partition, task: asyncio.Future[PartitionResult]) -> None:
        if self._last.get(partition) is task:
            del self._last[partition]
