"""The interface of the two ways to access Kafka."""

from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a streaming query writes to."""

    bootstrap: str
    topic: str
    checkpoint: str
    name: str
    """Which of a system's sinks: `plain`, at least once, or `transactional`, exactly once."""
    mode: str = "append"
    once: bool = False
    """Whether the query ends when it has read what is there."""

    @property
    def trigger(self) -> dict[str, Any]:
        """The arguments of Spark's own `trigger`."""
        return {"availableNow": True} if self.once else {"processingTime": "0 seconds"}


class Dialect(Protocol):
    """A system's session, its ways to read a topic, and its ways to write one."""

    def open_session(self, cores: int) -> SparkSession:
        """A session on this machine that knows the system's format."""

    def raw(self, spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
        """All of a topic, with keys, values and the rest as they are."""

    def typed(self, spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
        """All of a topic of JSON, as the columns of the schema."""

    def stream(self, spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
        """A topic of JSON as a stream of the columns of the schema, from its beginning."""

    def write(self, rows: DataFrame, bootstrap: str, topic: str) -> None:
        """Write `key` and `value` of a batch."""

    def start(self, rows: DataFrame, output: Output) -> StreamingQuery:
        """The query that writes `key` and `value` of a stream."""
