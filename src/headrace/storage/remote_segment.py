"""Segments in the archive: their objects, the local files that account for them, and how they are read.

An archived segment has these objects, under the id of its topic:

    segments/TOPIC-ID/PARTITION/BASE.log, .index, .timeindex, .txnindex, .snapshot
    segments/TOPIC-ID/PARTITION/BASE.json      the manifest, written last: the segment is complete

On the local disk each segment with objects in the archive has exactly one of these files, so that a crash
at any step leaves no object that is not accounted for:

    BASE.uploading        objects may exist; the upload is repeated, under the same names
    BASE.remote           a copy of the manifest: the segment is in the archive, and its `.log` may be deleted
    BASE.remote-deleted   the segment was deleted; its objects have to be
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from headrace.folders import replace_file
from headrace.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from headrace.storage.errors import ArchiveError
from headrace.storage.index import OffsetIndex, TimeIndex
from headrace.storage.remote_cache import Piece
from headrace.storage.segment import BatchPosition, FileRange, LogSegment, segment_name, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.storage.archive_store import ArchiveStore
    from headrace.storage.remote_cache import RemoteLogCache
    from headrace.storage.segment import FilePool, LogFile

PIECE_BYTES: Final = 8 * 2**20
"""The size of the parts in which a segment is read; a larger batch is one part."""

UPLOADING: Final = ".uploading"
REMOTE: Final = ".remote"
REMOTE_DELETED: Final = ".remote-deleted"
MANIFEST: Final = ".json"
INDEXES: Final = (".index", ".timeindex", ".txnindex")
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentManifest:
    """What is known of an archived segment without its records."""

    prefix: str
    """The names of its objects, without their suffixes."""
    base_offset: int
    end_offset: int
    size: int
    max_timestamp: int
    """The largest timestamp of its records, or the time at which its file was written if they have none."""
    pieces: tuple[tuple[int, int], ...]
    """Start and checksum (CRC-32C) of the parts in which the `.log` is read."""
    files: dict[str, tuple[int, int]]
    """Size and checksum of each other object, by its suffix."""

    def dump(self) -> bytes:
        """Encode the manifest."""
        return json.dumps({"version": VERSION, **asdict(self)}).encode()

    @classmethod
    def load(cls, data: bytes) -> SegmentManifest:
        """Decode a manifest; raises `ArchiveError` if it is damaged."""
        try:
            fields: dict[str, Any] = json.loads(data)
            if fields.pop("version") != VERSION:
                raise ArchiveError(
                    "a newer broker wrote the manifest of an archived segment: use that version"
                )
            fields["pieces"] = tuple((start, checksum) for start, checksum in fields["pieces"])
            fields["files"] = {
                suffix: (size, checksum) for suffix, (size, checksum) in fields["files"].items()
            }
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as fault:
            raise ArchiveError(f"the manifest of an archived segment is damaged: {fault!r}") from fault

    def objects(self) -> list[str]:
        """The names of all objects, the manifest first: without it the segment is not in the archive."""
        return [self.prefix + suffix for suffix in (MANIFEST, ".log", *self.files)]

    def ranges(self) -> list[Piece]:
        """The parts in which the `.log` is read."""
        ends = [start for start, _ in self.pieces[1:]] + [self.size]
        return [
            Piece(f"{self.prefix}.log", start, end - start, checksum)
            for (start, checksum), end in zip(self.pieces, ends, strict=True)
        ]


def object_prefix(topic_id: object, partition: int) -> str:
    """The folder of a partition's objects."""
    return f"segments/{topic_id}/{partition}/"


def upload_segment(
    store: ArchiveStore,
    segment: LogSegment,
    end_offset: int,
    folder: str,
    *,
    piece_bytes: int = PIECE_BYTES,
    check: Callable[[], None] = lambda: None,
) -> SegmentManifest:
    """Copy a closed segment to the archive, verify it, and make it official. It can be repeated.

    Blocks; called in a thread. `check` is called between the pieces, and may raise an error to stop the
    upload.
    """
    path = segment.path
    path.with_suffix(UPLOADING).touch()
    prefix = folder + segment_name(segment.base_offset, "")
    files: dict[str, tuple[int, int]] = {}
    sources = {suffix: path.with_suffix(suffix) for suffix in INDEXES}
    sources[".snapshot"] = path.with_name(segment_name(end_offset, ".snapshot"))
    segment.offset_index  # noqa: B018  a lost index is rebuilt before it is copied
    for suffix, source in sources.items():
        if source.exists():
            data = source.read_bytes()
            store.put(prefix + suffix, data)
            files[suffix] = len(data), crc32c(data)
    pieces: list[tuple[int, int]] = []
    contents = _read_pieces(segment, piece_bytes, pieces, check)
    store.put(f"{prefix}.log", contents if segment.size > piece_bytes else b"".join(contents))
    if store.size(f"{prefix}.log") != segment.size:
        raise ArchiveError(f"archive: {prefix}.log has another size than {path}: the upload is repeated")
    manifest = SegmentManifest(
        prefix=prefix,
        base_offset=segment.base_offset,
        end_offset=end_offset,
        size=segment.size,
        max_timestamp=segment.load_age_ms(),
        pieces=tuple(pieces),
        files=files,
    )
    store.put(prefix + MANIFEST, manifest.dump())
    replace_file(path.with_suffix(REMOTE), manifest.dump())
    path.with_suffix(UPLOADING).unlink(missing_ok=True)
    return manifest


def _read_pieces(
    segment: LogSegment, piece_bytes: int, pieces: list[tuple[int, int]], check: Callable[[], None]
) -> Iterator[bytes]:
    """The content of a log file in pieces; adds the start and checksum of each one to `pieces`."""
    starts = [0]
    for target in range(piece_bytes, segment.size, piece_bytes):
        start = segment.offset_index.boundary(0, target)
        if start > starts[-1]:
            starts.append(start)
    with segment.path.open("rb") as file:
        for start, end in zip(starts, [*starts[1:], segment.size], strict=True):
            check()
            data = os.pread(file.fileno(), end - start, start)
            pieces.append((start, crc32c(data)))
            yield data


def read_manifest(directory: Path, base_offset: int) -> SegmentManifest | None:
    """The manifest of a segment that is in the archive; None for one that is not."""
    path = directory / segment_name(base_offset, REMOTE)
    return SegmentManifest.load(path.read_bytes()) if path.exists() else None


class RemoteSegment(LogSegment):
    """A closed segment whose batches are only in the archive; its indexes are local."""

    __slots__ = ("_cache", "_pieces", "_starts")

    def __init__(
        self, directory: Path, manifest: SegmentManifest, pool: FilePool, cache: RemoteLogCache | None
    ) -> None:
        super().__init__(directory, manifest.base_offset, pool)
        self.manifest: SegmentManifest = manifest
        self.size = manifest.size
        self._cache = cache
        self._pieces = manifest.ranges()
        self._starts = [piece.start for piece in self._pieces]

    @property
    def file(self) -> LogFile:
        """A remote segment has no file."""
        raise ArchiveError(f"{self.path} is in the archive")

    def load_age_ms(self) -> int:
        """The largest timestamp of the segment, or the time at which its file was written."""
        return self.manifest.max_timestamp

    def sync(self) -> None:
        """Do nothing: the indexes can be downloaded again."""

    def _load_indexes(self) -> None:
        offsets, times = (self._read_index(suffix) for suffix in (".index", ".timeindex"))
        self._offset_index = OffsetIndex.load(self.base_offset, offsets)
        self._time_index = TimeIndex.load(self.base_offset, times)

    def _read_index(self, suffix: str) -> bytes:
        path = self.path.with_suffix(suffix)
        size, checksum = self.manifest.files[suffix]
        data = path.read_bytes() if path.exists() else b""
        if len(data) != size or crc32c(data) != checksum:
            # Power loss may have taken the local copy, which is not synced.
            file = self._opened_cache().open(Piece(self.manifest.prefix + suffix, 0, size, checksum))
            data = os.pread(file.fd, size, 0)
            replace_file(path, data, durable=False)
        return data

    def walk(self, position: int) -> Iterator[BatchPosition]:
        """Yield the batches from `position` on."""
        while position < self.size:
            file, piece = self._open(position)
            for step in walk(file, position - piece.start, piece.size):
                yield step._replace(position=step.position + piece.start)
            position = piece.start + piece.size

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of the batches from `position` on."""
        for step in self.walk(position):
            yield step.position, read_header(self.read(step.position, HEADER_BYTES))

    def read(self, position: int, size: int) -> bytes:
        """Read a batch, or a part of it."""
        file, piece = self._open(position)
        return os.pread(file.fd, size, position - piece.start)

    def range(self, position: int, size: int) -> FileRange:
        """The batches from `position` on, up to `size` bytes and the end of the piece."""
        file, piece = self._open(position)
        return FileRange(file, position - piece.start, min(size, piece.start + piece.size - position))

    def pieces_after(self, position: int) -> list[Piece]:
        """The pieces after the one that holds `position`; all for −1."""
        return self._pieces[bisect_right(self._starts, position) :]

    def _open(self, position: int) -> tuple[LogFile, Piece]:
        piece = self._pieces[bisect_right(self._starts, position) - 1]
        return self._opened_cache().open(piece), piece

    def _opened_cache(self) -> RemoteLogCache:
        if self._cache is None:
            raise ArchiveError(f"{self.path} is in an archive: start the broker with --archive")
        return self._cache
