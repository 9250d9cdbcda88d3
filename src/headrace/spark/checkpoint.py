"""A query's checkpoint, as Spark writes it: the id of the query, and the offsets at which each batch ends.

A checkpoint is a folder. `metadata` holds the query's id; `offsets/N` has, before batch N is run, the end of
each source in the batch; `commits/N` is written when it is done. Every file is written under another name and
then renamed, so that a crash leaves either the whole file or none.

    v1
    {"batchWatermarkMs": …}
    {"orders": {"0": 1200, "1": 1180}, "headrace.first": {"orders": {"0": 1000, "1": 1000}}}

Batch N begins where N-1 ended; partitions that it is the first to read begin where its own entry says. There
is one line for each source, `-` where a source had nothing yet. Version 2 of the format puts the source's
name and a colon before the offsets.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.folders import LocalFolder
from headrace.spark.errors import BadCheckpoint
from headrace.spark.folders import folder_at
from headrace.spark.offsets import FIRST, SIGNS

if TYPE_CHECKING:
    from collections.abc import Iterable

Offsets = dict[str, dict[str, int]]
"""The next offset of each partition (its number as text) of each topic, in the form of Spark's source."""

NOTHING_YET = "-"


class SparkCheckpoint:
    """The files of one query's checkpoint, on this machine or on any file system that Spark reaches."""

    def __init__(self, location: str) -> None:
        self._folder = folder_at(location)
        self.local = self._folder.path if isinstance(self._folder, LocalFolder) else None
        """The path of the checkpoint, if it is a folder that this process can read; otherwise None."""
        self._newest: tuple[int, str] = (-1, "")

    def __str__(self) -> str:
        return str(self._folder)

    @property
    def uri(self) -> str:
        """The location for Spark: a path without a scheme would refer to Hadoop's default file system."""
        return str(self) if self.local is None else f"file://{self.local.absolute()}"

    def query_id(self) -> str | None:
        """The id that Spark gave to the query when it was first started; None before that."""
        text = self._folder.read("metadata")
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as fault:
            raise BadCheckpoint(f"{self}/metadata does not name a query: {fault}") from fault

    def offsets(self, batch: int) -> Offsets:
        """Where `batch` ends in the topics that the query reads; sources of other kinds are left out."""
        return merge_offsets(parse_offsets(self._offsets_file(batch), f"{self}/offsets/{batch}"))

    def first_offsets(self, batch: int) -> Offsets:
        """Where the partitions begin that `batch` is the first to read."""
        return merge_offsets(parse_first_offsets(self._offsets_file(batch), f"{self}/offsets/{batch}"))

    def watermark_ms(self, batch: int) -> int:
        """The watermark of `batch`, in milliseconds since 1970; 0 if it has none yet."""
        described = self._offsets_file(batch).split("\n")[1]
        try:
            return int(json.loads(described).get("batchWatermarkMs", 0))
        except (ValueError, AttributeError, TypeError) as fault:
            raise BadCheckpoint(f"{self}/offsets/{batch} does not describe its batch: {fault}") from fault

    def _offsets_file(self, batch: int) -> str:
        # A batch is read several times while it waits; its file does not change.
        if self._newest[0] == batch:
            return self._newest[1]
        text = self._folder.read(f"offsets/{batch}")
        if text is None:
            raise BadCheckpoint(
                f"{self} has no offsets of batch {batch}: the checkpoint was changed while its query ran, "
                "or files of it were removed. Start the job with a new checkpoint."
            )
        self._newest = (batch, text)
        return text


def parse_offsets(text: str, name: str) -> list[Offsets]:
    """The offsets of each source that reads topics, from a file of the checkpoint's `offsets`."""
    return [without_offset_markers(offsets) for offsets in _topic_sources(text, name)]


def parse_first_offsets(text: str, name: str) -> list[Offsets]:
    """Where the partitions begin that a batch is the first to read, for each source that reads topics."""
    return [offsets.get(FIRST, {}) for offsets in _topic_sources(text, name)]


def _topic_sources(text: str, name: str) -> list[dict[str, dict[str, Any]]]:
    version, *lines = text.split("\n")
    if version not in ("v1", "v2") or not lines:
        raise BadCheckpoint(
            f"{name} is not an offsets file of Spark's: it begins with {version[:40]!r}. A power cut may "
            "leave torn files; restore it, or start the job with a new checkpoint."
        )
    described = lines[1:]
    if version == "v2":
        described = [line.partition(":")[2] for line in described]
    read = (_topic_source(source) for source in described if source != NOTHING_YET)
    return [source for source in read if source is not None]


def merge_offsets(sources: Iterable[Offsets]) -> Offsets:
    """The offsets of all sources; a partition that two of them read counts as far as both have read it."""
    merged: Offsets = {}
    for source in sources:
        for topic, partitions in source.items():
            known = merged.setdefault(topic, {})
            for partition, offset in partitions.items():
                known[partition] = min(offset, known.get(partition, offset))
    return merged


def begin_at(first: Offsets, before: Offsets) -> Offsets:
    """Where a batch begins: where the one before ended, and at `first` in partitions that are new to it."""
    return before | {topic: before.get(topic, {}) | offsets for topic, offsets in first.items()}


def count_records(start: Offsets, end: Offsets) -> int:
    """How many offsets lie between two positions; a partition that `start` does not know counts from 0."""
    return sum(
        max(0, offset - start.get(topic, {}).get(partition, 0))
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


def _topic_source(line: str) -> dict[str, dict[str, Any]] | None:
    """What a source has journaled, if it reads topics; other sources have numbers, or other objects."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return found if all(map(_are_offsets, without_offset_markers(found).values())) else None


def _are_offsets(partitions: object) -> bool:
    return isinstance(partitions, dict) and all(
        number.isdecimal() and isinstance(offset, int) and not isinstance(offset, bool)
        for number, offset in partitions.items()
    )


def without_offset_markers(offsets: dict[str, dict[str, Any]]) -> Offsets:
    """The offsets of topics, without the markers of the journal."""
    return {topic: partitions for topic, partitions in offsets.items() if topic not in SIGNS}
