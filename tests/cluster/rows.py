"""Rows of a topic as text, read through whichever format: `kafka`, Spark's own, or `headrace`.

Only PySpark is used here, in what 4.0 and 4.3 have in common: the one half of a comparison runs in another
environment, as a program that takes its readings as JSON on standard input and prints their rows as JSON.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as all of Spark's users call it

if TYPE_CHECKING:
    from collections.abc import Mapping

Reading = dict[str, Any]
"""`options` of the format; for a stream, which reads what is there and ends, also its `checkpoint`."""


def read_rows(spark: SparkSession, source: str, reading: Reading) -> list[str]:
    """Every row with all its columns as JSON (bytes in base64), sorted, and the schema before them."""
    options = reading["options"]
    if "checkpoint" not in reading:
        rows = spark.read.format(source).options(**options).load()
        return [rows.schema.json(), *_as_text(rows)]
    stream = spark.readStream.format(source).options(**options).load()
    return [stream.schema.json(), *_drain(spark, stream, reading["checkpoint"])]


def _as_text(rows: DataFrame) -> list[str]:
    everything = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    return sorted(row[0] for row in rows.select(everything).collect())


def _drain(spark: SparkSession, stream: DataFrame, checkpoint: str) -> list[str]:
    """The rows that a stream with this checkpoint has not read yet."""
    found: list[str] = []

    def keep(rows: DataFrame, _: int) -> None:
        found.extend(_as_text(rows))

    query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    return sorted(found)


def main() -> None:
    """Do the readings that standard input describes, with Spark's own connector."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
    readings: Mapping[str, Reading] = json.load(sys.stdin)
    rows = {name: read_rows(spark, "kafka", reading) for name, reading in readings.items()}
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
