"""The process that Spark's Python workers are forked from, with all that they need already loaded.

Spark starts it in place of `pyspark.daemon` (`spark.python.daemon.module`). A worker that had to load Arrow,
numba and the kernels by itself would be a second late with its first row.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyspark.daemon

if TYPE_CHECKING:
    import socket

_worker = pyspark.daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """The exit code of a worker that has served Spark; one that it hung up on has nobody to complain to."""
    with suppress(BrokenPipeError):
        return _worker(sock, authenticated)
    return 1


def load() -> None:
    """Load what workers need, and nothing that starts to work: running threads would not survive the fork."""
    import headrace.client.produce
    import headrace.columns.encoding
    import headrace.spark.batch_reader
    import headrace.spark.rows
    import headrace.spark.sink
    import headrace.spark.stream_reader  # noqa: F401


if __name__ == "__main__":
    load()
    pyspark.daemon.worker = worker
    pyspark.daemon.manager()
