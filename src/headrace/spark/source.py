"""The data source itself: what Spark calls when a program says `format("headrace")`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource

from headrace.spark.errors import BadOption
from headrace.spark.internals import PLACEHOLDER
from headrace.spark.source_settings import SourceSettings

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class HeadraceSource(DataSource):
    """Topics as tables and streams. Spark makes an instance in every process that plans or runs a part."""

    parallelism: ClassVar[int] = os.cpu_count() or 1
    """How many tasks the session can run at once; registration sets it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "headrace"

    def schema(self) -> StructType | str:
        """The columns that are read."""
        return self._source().layout.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads once."""
        from headrace.spark.batch_reader import BatchReader

        return BatchReader(self._source(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """What reads on and on."""
        from headrace.spark.stream_reader import StreamReader

        if PLACEHOLDER in self.options:
            raise BadOption(
                "the rows of a job's stream were read outside of the query of the job: return them from its "
                "function."
            )
        return StreamReader(self._source(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """What writes once."""
        from headrace.spark.sink import TopicSink, TopicSinkWriter

        if overwrite:
            raise BadOption('a topic cannot be overwritten: write with mode("append")')
        sink = TopicSink.of(self.options)
        sink.check(schema)
        return TopicSinkWriter(sink)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        """What writes batch after batch; in the output mode `complete` each batch is added whole."""
        from headrace.spark.sink import TopicSink, TopicStreamSinkWriter

        sink = TopicSink.of(self.options)
        sink.check(schema)
        return TopicStreamSinkWriter(sink)

    def _source(self) -> SourceSettings:
        return SourceSettings.of(self.options, parallelism=self.parallelism)
