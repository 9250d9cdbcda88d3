"""The state of a job's operators as a DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def read_state(
    spark: SparkSession,
    job: str,
    operator: str | None = None,
    *,
    key: Mapping[str, object] | None = None,
    batch: int | None = None,
    state: str | Path | None = None,
) -> DataFrame:
    """The rows that an operator of a job keeps, after its last batch or after `batch`.

    `operator` is a name that `headrace state JOB` lists; a job with one operator needs none. `key` are values
    of columns; `state` is the state folder if it is not the configured one. Each partition is read by a task.
    The columns `state_partition`, `state_due` and `state_expires` (or `state_side` for a join) precede those
    of the operator.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from headrace.settings import Settings
    from headrace.state.inspection import checked_batch, find_operator, read_rows
    from headrace.state.operators import partition_files
    from headrace.streams.job_folder import find_job

    folder = Settings.read().state(None) if state is None else Path(state)
    place = find_operator(f"{find_job(folder, job).checkpoint}/operators", operator)
    number = checked_batch(place, batch)
    wanted = {name: str(value) for name, value in (key or {}).items()}
    first = next(read_rows(place, batch=number), None)
    if first is None:
        raise Misuse(f"{place.rpartition('/')[2]} of job {job!r} keeps nothing after batch {number}.")
    schema = first.schema
    partitions = len(partition_files(place))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ids in batches:
            for partition in ids.column(0).to_pylist():
                for rows in read_rows(place, batch=number, key=wanted, partition=partition):
                    yield from rows.cast(schema).to_batches()

    return spark.range(0, partitions, 1, partitions).mapInArrow(read, from_arrow_schema(schema))
