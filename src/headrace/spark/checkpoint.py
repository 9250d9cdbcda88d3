"""What Spark has written into a query's checkpoint: who the query is, and which offsets each batch ends at.

A checkpoint is a folder. `metadata` holds the query's id; `offsets/N` says, before batch N is run, up to
where it reads each source; `commits/N` says that it is done. Every file is written under another name and
then renamed, so that a crash leaves either the whole file or none.

    v1
    {"batchWatermarkMs": …}
    {"orders": {"0": 1200, "1": 1180}}

There is one line for each source, `-` where a source had nothing yet. Version 2 of the format puts the
source's name and a colon before the offsets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.spark.positions import SIGNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

Offsets = dict[str, dict[str, int]]
"""Where each partition (its number as text) of each topic is to be read next, as Spark's source has it."""

NOTHING_YET = "-"


class BadCheckpoint(HeadraceError):
    """A checkpoint that lacks a file, or has one that is not Spark's."""


class Checkpoint:
    """The files of one query's checkpoint, on this machine or on any file system that Spark reaches."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        context: Any = spark.sparkContext
        jvm: Any = context._jvm
        given = jvm.org.apache.hadoop.fs.Path(location)
        self._jvm = jvm
        self._files = given.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        self._folder = self._files.makeQualified(given)
        uri = self._folder.toUri()
        # A micro-batch waits while its offsets are read: 0.1 ms by hand, some 3 ms by way of the JVM.
        self.local = Path(uri.getPath()) if uri.getScheme() == "file" else None

    def __str__(self) -> str:
        return str(self.local or self._folder.toString())

    def query_id(self) -> str | None:
        """The id that Spark gave to the query when it was first started; None before that."""
        text = self._read("metadata")
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as fault:
            raise BadCheckpoint(f"{self}/metadata does not name a query: {fault}") from fault

    def offsets(self, batch: int) -> Offsets:
        """Where `batch` ends in the topics that the query reads; sources of other kinds are left out."""
        return merge_offsets(parse_offsets(self._offsets_file(batch), f"{self}/offsets/{batch}"))

    def watermark_ms(self, batch: int) -> int:
        """The watermark of `batch`, in milliseconds since 1970; 0 before there is one."""
        described = self._offsets_file(batch).split("\n")[1]
        try:
            return int(json.loads(described).get("batchWatermarkMs", 0))
        except (ValueError, AttributeError, TypeError) as fault:
            raise BadCheckpoint(f"{self}/offsets/{batch} does not describe its batch: {fault}") from fault

    def _offsets_file(self, batch: int) -> str:
        text = self._read(f"offsets/{batch}")
        if text is None:
            raise BadCheckpoint(
                f"{self} has no offsets of batch {batch}: the checkpoint was changed while its query ran, "
                "or files of it were removed. Start the job with a new checkpoint."
            )
        return text

    def _read(self, name: str) -> str | None:
        if self.local is not None:
            try:
                return (self.local / name).read_text()
            except FileNotFoundError:
                return None
        return self._read_remote(self._jvm.org.apache.hadoop.fs.Path(self._folder, name))

    def _read_remote(self, path: Any) -> str | None:
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


def parse_offsets(text: str, name: str) -> list[Offsets]:
    """The offsets of each source that reads topics, from a file of the checkpoint's `offsets`."""
    version, *lines = text.split("\n")
    if version not in ("v1", "v2") or not lines:
        raise BadCheckpoint(
            f"{name} is not an offsets file of Spark's: it begins with {version[:40]!r}. A power cut may "
            "leave torn files; restore it, or start the job with a new checkpoint."
        )
    described = lines[1:]
    if version == "v2":
        described = [line.partition(":")[2] for line in described]
    return topic_offsets(described)


def topic_offsets(sources: Iterable[str]) -> list[Offsets]:
    """The offsets of those sources, each in its own JSON, that read topics."""
    read = (_topic_offsets(source) for source in sources if source != NOTHING_YET)
    return [offsets for offsets in read if offsets is not None]


def merge_offsets(sources: Iterable[Offsets]) -> Offsets:
    """The offsets of all sources; a partition that two of them read counts as far as both have read it."""
    merged: Offsets = {}
    for source in sources:
        for topic, partitions in source.items():
            known = merged.setdefault(topic, {})
            for partition, offset in partitions.items():
                known[partition] = min(offset, known.get(partition, offset))
    return merged


def count_records(start: Offsets, end: Offsets) -> int:
    """How many offsets lie between two positions; a partition that `start` does not know counts from 0."""
    return sum(
        max(0, offset - start.get(topic, {}).get(partition, 0))
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


def _topic_offsets(line: str) -> Offsets | None:
    """The offsets in `line` when they are those of topics; other sources have numbers, or other objects."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    is_of_topics = isinstance(found, dict) and all(
        isinstance(partitions, dict)
        and all(
            number.isdecimal() and isinstance(offset, int) and not isinstance(offset, bool)
            for number, offset in partitions.items()
        )
        for partitions in found.values()
    )
    return without_signs(found) if is_of_topics else None


def without_signs(offsets: Offsets) -> Offsets:
    """The offsets of topics alone: signs stand beside them, and are none."""
    return {topic: partitions for topic, partitions in offsets.items() if topic not in SIGNS}
