"""A process that delivers one batch to a webhook or a mail server, as a job does: for tests that kill it."""

import sys
import time
from pathlib import Path

import pyarrow as pa

from headrace.folders import LocalFolder
from headrace.sinks.delivery import SinkDelivery
from headrace.sinks.email import email
from headrace.sinks.sink import SinkContext
from headrace.sinks.staging import StagedBatch
from headrace.sinks.webhook import webhook

ROWS = pa.table({"id": [1, 2, 3, 4, 5, 6]})


def main(url: str, folder: str) -> None:
    sink = (
        webhook(url, max_in_flight=1)
        if url.startswith("http")
        else email("ann@example.com", sender="shop@example.com", subject="{id}", body="{id}", smtp=url)
    )
    context = SinkContext(
        job="shop.alerts",
        generation=1,
        schema=ROWS.schema,
        folder=LocalFolder(Path(folder)),
        state=Path(folder),
    )
    delivery = SinkDelivery(sink, context, on_status=print, wait=lambda seconds: bool(time.sleep(seconds)))
    assert delivery.deliver(0, StagedBatch.of(ROWS)) == []
    delivery.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
