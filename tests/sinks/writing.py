"""One batch into a sink."""

import pyarrow as pa

from headrace.sinks.sink import Sink, SinkContext
from headrace.sinks.staging import StagedBatch


def write(sink: Sink, context: SinkContext, batch: int, table: pa.Table) -> int | None:
    """Write a batch by a connection of its own; the newest batch that the target then has."""
    target = sink.open(context)
    try:
        target.commit(batch, StagedBatch.of(table))
        return target.last_batch()
    finally:
        target.close()
