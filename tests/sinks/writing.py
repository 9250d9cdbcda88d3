"""One batch into a sink."""

import pyarrow as pa

from headrace.sinks.sink import Place, Sink


def write(sink: Sink, place: Place, batch: int, table: pa.Table) -> int | None:
    """Write a batch by a connection of its own; the newest batch that the target then has."""
    target = sink.open(place)
    try:
        target.write(batch, table)
        return target.newest()
    finally:
        target.close()
