"""The command `headrace broker recover`: make a data folder from an archive, after the loss of the disk.

The broker that is started with it continues the same cluster: topics with their ids and settings, committed
offsets, transactions, share groups and users as they were when they were archived last. Records stay in the
archive and are read from there, so that only indexes are downloaded, and the time does not grow with the
data.

Records that were not archived are lost: those of topics that are not tiered, and those of active segments
unless the topic has `headrace.archive.acks`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from headrace.broker.archive_acks import EPOCH_FILE, TAILS, choose_tails, epoch_of
from headrace.broker.remote_log_manager import START_OFFSET
from headrace.broker.state_log import StateRecord, replay
from headrace.broker.topics import STATE_CONFIG, TOPICS
from headrace.errors import HeadraceError, Misuse
from headrace.folders import replace_file
from headrace.protocol.records import NewRecord, encode_records
from headrace.storage.archive_store import open_archive
from headrace.storage.checkpoint import Offsets, write_checkpoint
from headrace.storage.errors import ArchiveError
from headrace.storage.folder import CLEAN_STOP, CLUSTER_ID, DataFolder
from headrace.storage.remote_segment import INDEXES, MANIFEST, REMOTE, SegmentManifest, object_prefix
from headrace.storage.segment import segment_name
from headrace.storage.tiering import contiguous

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.storage.archive_store import ArchiveStore

DOWNLOADS: Final = 16
"""Objects that are downloaded at once: they are small."""


@dataclass(slots=True, kw_only=True)
class RecoveredFolder:
    """What a recovery found in the archive."""

    topics: int = 0
    partitions: int = 0
    segments: int = 0
    size: int = 0
    ends: Offsets = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace broker recover",
        description="Make a data folder from an archive, after the loss of the disk; then start the broker.",
        epilog="example: headrace broker recover --archive s3://bucket/prefix --data ./data",
    )
    parser.add_argument("--archive", required=True, metavar="URL", help="the archive of the lost broker")
    parser.add_argument(
        "--data", default="data", type=Path, metavar="DIR", help="the new data folder (default: data)"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Recover a data folder; returns the exit code."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    try:
        done = recover(open_archive(options.archive), options.data)
    except (HeadraceError, OSError) as fault:
        sys.stderr.write(f"headrace broker recover: {fault}\n")
        return 1
    sys.stdout.write(
        f"recovered {done.topics} tiered topics with {done.partitions} partitions and {done.size} archived "
        f"bytes to {options.data} in {time.monotonic() - began:.1f} s; start the broker with --archive "
        f"{options.archive} --data {options.data}\n"
    )
    return 0


def recover(store: ArchiveStore, data: Path) -> RecoveredFolder:
    """Make the data folder `data`, which must not exist or be empty.

    The archived broker must not run: two brokers would write to the same archive.
    """
    if data.exists() and any(data.iterdir()):
        raise Misuse(f"{data} is not empty: choose a new folder")
    if store.size(CLUSTER_ID) is None:
        raise ArchiveError("the archive is empty: no broker has written to it")
    building = data.with_name(data.name + ".recovering")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True, mode=0o700)
    replace_file(building / CLUSTER_ID, store.get(CLUSTER_ID))
    with ThreadPoolExecutor(max_workers=DOWNLOADS) as pool:
        recovered = _Recovery(store, building, pool).run()
    if data.exists():
        data.rmdir()
    building.rename(data)
    return recovered


class _Recovery:
    """One recovery into a folder."""

    def __init__(self, store: ArchiveStore, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._folder = folder
        self._pool = pool
        self._found = RecoveredFolder()
        self._epoch = 0
        """The latest epoch in the archive: see `headrace.broker.archive_acks`."""

    def run(self) -> RecoveredFolder:
        for name in self._store.list("internal/"):
            if name.count("/") == 1 and name.endswith(MANIFEST):
                self._recover_internal(name)
        names = [name for name in self._store.list("topics/") if name.endswith(MANIFEST)]
        known = self._read_topics()
        archived = [json.loads(data) for data in self._pool.map(self._store.get, names)]
        # Others were deleted, and perhaps created again, before their objects were.
        topics = [each for each in archived if known.get(each["name"], each["id"]) == each["id"]]
        for topic in topics:
            self._recover_topic(topic)
        write_checkpoint(self._folder / "recovery-point-offset-checkpoint", self._found.ends)
        write_checkpoint(self._folder / "log-start-offset-checkpoint", self._found.starts)
        replace_file(self._folder / EPOCH_FILE, str(self._epoch).encode())
        self._add_topics([topic for topic in topics if topic["name"] not in known])
        return self._found

    def _recover_internal(self, manifest: str) -> None:
        topic = manifest.removeprefix("internal/").removesuffix(MANIFEST)
        directory = self._folder / f"{topic}-0"
        directory.mkdir()
        stored = json.loads(self._store.get(manifest))
        for segment in stored["segments"]:
            data = self._store.get(segment["object"])
            if crc32c(data) != segment["checksum"]:
                raise ArchiveError(f"archive: {segment['object']} is damaged: restore the object")
            replace_file(directory / segment_name(segment["base_offset"]), data)
        if stored["start_offset"]:
            self._found.starts[topic, 0] = stored["start_offset"]

    def _recover_topic(self, topic: dict[str, Any]) -> None:
        self._found.topics += 1
        for partition in range(topic["partitions"]):
            self._found.partitions += 1
            self._recover_partition(topic, partition)

    def _recover_partition(self, topic: dict[str, Any], partition: int) -> None:
        folder = object_prefix(topic["id"], partition)
        names = set(self._store.list(folder))
        start = int(self._store.get(folder + START_OFFSET)) if folder + START_OFFSET in names else 0
        loaded = self._pool.map(self._store.get, [name for name in names if name.endswith(MANIFEST)])
        manifests = contiguous([SegmentManifest.load(data) for data in loaded], start)
        directory = self._folder / f"{topic['name']}-{partition}"
        directory.mkdir()
        end = manifests[-1].end_offset if manifests else 0
        parts = [name for name in names if name.startswith(folder + TAILS)]
        self._epoch = max([self._epoch, *map(epoch_of, parts)])
        tails = choose_tails(parts)
        self._recover_tails(directory, {base: parts for base, parts in tails.items() if base >= end})
        self._found.starts[topic["name"], partition] = start
        if not manifests:
            return
        jobs = [(directory, each, each is manifests[-1]) for each in manifests]
        list(self._pool.map(lambda job: self._recover_segment(*job), jobs))
        key = topic["name"], partition
        self._found.ends[key] = end
        self._found.starts[key] = max(start, manifests[0].base_offset)
        self._found.segments += len(manifests)
        self._found.size += sum(each.size for each in manifests)

    def _recover_tails(self, directory: Path, tails: Mapping[int, Sequence[str]]) -> None:
        """Write the segments of which only parts are in the archive; the broker scans them when it starts."""
        for base_offset, parts in tails.items():
            data = b"".join(self._pool.map(self._store.get, parts))
            replace_file(directory / segment_name(base_offset), data)
            self._found.size += len(data)

    def _recover_segment(self, directory: Path, manifest: SegmentManifest, is_last: bool) -> None:
        """Download the indexes of a segment, and of the last one the state of producers after it."""
        for suffix, (size, checksum) in manifest.files.items():
            if suffix not in INDEXES and not is_last:
                continue
            data = self._store.get(manifest.prefix + suffix)
            if len(data) != size or crc32c(data) != checksum:
                raise ArchiveError(f"archive: {manifest.prefix}{suffix} is damaged: restore the object")
            base = manifest.base_offset if suffix in INDEXES else manifest.end_offset
            replace_file(directory / segment_name(base, suffix), data, durable=False)
        replace_file(directory / segment_name(manifest.base_offset, REMOTE), manifest.dump(), durable=False)

    def _read_topics(self) -> dict[str, str | None]:
        """The id of each topic in the restored internal topic; None for a deleted one."""
        folder = DataFolder(self._folder)
        log = folder.open(TOPICS, 0, STATE_CONFIG, _now_ms())
        entries = [each for each in replay(log) if isinstance(each, StateRecord)]
        folder.abandon()
        return {
            each.key.decode(): None if each.value is None else json.loads(each.value)["id"]
            for each in entries
        }

    def _add_topics(self, topics: Sequence[dict[str, Any]]) -> None:
        """Add tiered topics that were archived later than the list of topics, and close the folder."""
        folder = DataFolder(self._folder)
        log = folder.open(TOPICS, 0, STATE_CONFIG, _now_ms())
        for topic in topics:
            value = {name: topic[name] for name in ("id", "partitions", "configs")}
            records = [NewRecord(topic["name"].encode(), json.dumps(value).encode(), _now_ms())]
            log.append_internal(encode_records(records, records[0].timestamp), 1, records[0].timestamp)
        folder.close()
        (self._folder / CLEAN_STOP).unlink(missing_ok=True)  # the next start scans the ends of partitions


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
