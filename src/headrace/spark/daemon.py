"""The process that Spark's Python workers are forked from, with the modules that they need already loaded.

Spark starts it instead of `pyspark.daemon` (`spark.python.daemon.module`). A worker that had to load Arrow,
numba and the kernels would take a second longer for its first row.
"""

from __future__ import annotations

import gc

import pyspark.daemon


def load() -> None:
    """Load the modules of workers, but start no threads: they would not survive a fork."""
    import headrace.client.produce
    import headrace.columns.documents
    import headrace.columns.encoding
    import headrace.columns.sliding
    import headrace.columns.window_assigners
    import headrace.spark.aggregate_pushdown_task
    import headrace.spark.batch_reader
    import headrace.spark.keyed_stage
    import headrace.spark.rows
    import headrace.spark.sink
    import headrace.spark.stream_reader
    import headrace.spark.table_stage  # noqa: F401

    # After every task a worker collects garbage. Scanning the modules loaded here each time would take longer
    # than a small task.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    load()
    pyspark.daemon.manager()
