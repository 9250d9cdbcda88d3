"""Readers of streams, opened as Spark opens them."""

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.types import StructType

from headrace.spark import offset_reader
from headrace.spark.source import SourceSettings
from headrace.spark.stream_reader import StreamReader

Open = Callable[..., StreamReader]


@pytest.fixture
def open_reader(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens the reader of a stream that looks for new partitions at every batch."""
    monkeypatch.setattr(offset_reader, "DISCOVERY_S", 0.0)
    opened: list[StreamReader] = []

    def open_reader(**options: str) -> StreamReader:
        named = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest"} | options
        settings = SourceSettings.of(named, parallelism=2)
        schema = settings.layout.schema()
        assert isinstance(schema, StructType)
        opened.append(StreamReader(settings, schema))
        return opened[-1]

    yield open_reader
    for reader in opened:
        reader.stop()
