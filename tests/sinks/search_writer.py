"""A process that writes one batch after the other into a search index until it is killed.

Each batch gives all rows the number of the batch, so that two batches cannot be mixed without notice.
"""

import sys
from itertools import count
from pathlib import Path

import pyarrow as pa

from headrace.folders import LocalFolder
from headrace.sinks.search import search
from headrace.sinks.sink import SinkContext
from headrace.sinks.staging import StagedBatch

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "batch": pa.int64()})
ROWS = 200
SINK = search("numbers", key="id", text=["name"])


def context(folder: Path) -> SinkContext:
    return SinkContext(
        job="shop.numbers", generation=1, schema=SCHEMA, folder=LocalFolder(folder / "own"), state=folder
    )


def main(folder: Path) -> None:
    target = SINK.open(context(folder))
    newest = target.last_batch()
    for batch in count(0 if newest is None else newest + 1):
        rows = [{"id": number, "name": f"row {number}", "batch": batch} for number in range(ROWS)]
        target.commit(batch, StagedBatch.of(pa.Table.from_pylist(rows, schema=SCHEMA)))
        print(batch, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
