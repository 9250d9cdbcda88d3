"""One batch into a sink."""

import pyarrow as pa

from headrace.sinks.sink import Sink, SinkContext


def write(sink: Sink, context: SinkContext, batch: int, table: pa.Table) -> int | None:
    """Write a batch by a connection of its own; the newest batch that the target then has."""
    target = sink.open(context)
    try:
        target.write(batch, table)
        return target.last_batch()
    finally:
        target.close()
