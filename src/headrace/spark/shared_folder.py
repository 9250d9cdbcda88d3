"""Whether the workers of a cluster see the folder in which a job keeps its state."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from uuid import uuid4

from headrace.errors import Misuse
from headrace.spark.session import is_on_this_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE: Final = 4
"""So many tasks ask at once that no worker is likely to be left out."""


def check_shared(spark: SparkSession, place: str) -> None:
    """Refuse a checkpoint in a folder of the driver that workers do not see: their state would be lost.

    A path may be a shared mount, so that workers are asked. Other file systems are Spark's to open.
    """
    parts = urlsplit(place)
    if is_on_this_machine(str(spark.sparkContext.master)) or parts.scheme not in ("", "file"):
        return
    folder = Path(parts.path).parent  # the checkpoint itself is made when the job's identity is written
    folder.mkdir(parents=True, exist_ok=True)
    token = folder / f".seen-{uuid4().hex}"
    token.touch()
    try:
        blind = machines_without(spark, token)
    finally:
        token.unlink(missing_ok=True)
    if blind:
        raise Misuse(
            f"the checkpoint of the job is at {place}, and {', '.join(blind)} cannot see that folder: each "
            "worker would keep its state on its own disk. Set `checkpoints` to a folder, such as a shared "
            "mount, that all machines see under the same path."
        )


def machines_without(spark: SparkSession, path: Path) -> list[str]:
    """The names of the machines that run tasks and do not see a file."""
    context = spark.sparkContext
    tasks = TASKS_PER_CORE * context.defaultParallelism
    answers = context.parallelize(range(tasks), tasks).map(lambda _: (socket.gethostname(), path.exists()))
    return sorted({machine for machine, sees in answers.collect() if not sees})
