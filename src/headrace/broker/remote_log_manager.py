"""Tiered storage of the broker: copies closed segments to the archive, and deletes them there.

The counterpart of Apache Kafka's RemoteLogManager. One task visits all partitions in turn; for each it
first deletes the objects of deleted segments, then uploads closed segments, the oldest first. Everything
that it does can be repeated, so that a fault of the archive only delays it.

The archive describes itself, so that a broker can be restored from it alone:

    cluster-id                            the broker that writes here: a second one is refused
    topics/TOPIC-ID.json                  name, partitions and settings of a tiered topic
    segments/TOPIC-ID/PARTITION/...       see `headrace.storage.remote_segment`
    internal/NAME.json, internal/NAME/... the broker's internal topics, as they were at the last pass

The event loop never waits for the archive: uploads and downloads have their own threads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from crc32c import crc32c

from headrace.broker.archive_acks import TailUploader
from headrace.storage.archive_store import open_archive
from headrace.storage.errors import ArchiveError, StorageError
from headrace.storage.folder import CLUSTER_ID, DELETIONS
from headrace.storage.partition import PartitionLog
from headrace.storage.remote_cache import RemoteLogCache
from headrace.storage.remote_segment import object_prefix, upload_segment
from headrace.storage.tiering import (
    archivable,
    delete_archived,
    delete_partition_objects,
    has_archived,
    stop_tiering,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.broker import Broker
    from headrace.broker.topics import Partition, Topic
    from headrace.storage.archive_store import ArchiveStore
    from headrace.storage.segment import LogFile, LogSegment
    from headrace.storage.tiering import ArchivableSegment

T = TypeVar("T")

log = logging.getLogger(__name__)

READERS: Final = 4
"""Downloads at once: one connection to an object store does not use the network."""
STEP_PARTITIONS: Final = 64
"""Partitions that are looked at before other requests are served."""
START_OFFSET: Final = "log-start-offset"


class _InternalSegment(NamedTuple):
    """A segment of an internal topic as it was when it was visited; its file stays open."""

    base_offset: int
    file: LogFile
    size: int


class RemoteLogManager:
    """Uploads, deletions and downloads of one broker."""

    def __init__(self, broker: Broker, url: str) -> None:
        self._broker = broker
        self._url = url
        self._store = open_archive(url)
        self._interval = broker.config.archive_interval_ms / 1000
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-archive")
        self._readers = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="headrace-remote-read")
        broker.config.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.cache = RemoteLogCache(
            self._store,
            broker.config.data / "remote-log-cache",
            limit_bytes=broker.config.archive_cache_bytes,
            executor=self._readers,
            call_soon=self._call_soon,
        )
        self.tails = TailUploader(broker, self._store, self.prepare)
        self._task: asyncio.Task[None] | None = None
        self._is_verified = False
        self._is_stopping = False
        self._described: dict[object, bytes] = {}
        """The description of each topic that is in the archive."""
        self._starts: dict[str, int] = {}
        self._untiered: set[str] = set()
        """Partitions that have no objects."""
        self._internal_ends: dict[str, tuple[int, int]] = {}

    def _call_soon(self, call: Callable[[], None]) -> None:
        if not self._broker.loop.is_closed():
            self._broker.loop.call_soon_threadsafe(call)

    def start(self) -> None:
        """Start to archive segments."""
        self._task = self._broker.loop.create_task(self._run())

    async def close(self) -> None:
        """Stop. An upload in progress stops at its next piece, and is repeated after the next start."""
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.tails.close()
        self.shutdown()

    def shutdown(self) -> None:
        """Start no more uploads and downloads."""
        self._is_stopping = True
        self._writer.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.archive()
            except (StorageError, OSError) as fault:
                log.warning("Archiving is retried in %s s: %s", self._interval, fault)
            await asyncio.sleep(self._interval)

    async def archive(self) -> None:
        """Do once what there is to do."""
        await self._verify()
        await self._in_thread(self._delete_topics)
        for topic in self._broker.topics:
            for number, partition in enumerate(topic.partitions):
                await self._archive_partition(topic, partition)
                if not number % STEP_PARTITIONS:
                    await asyncio.sleep(0)
        await self._archive_internal()

    async def _verify(self) -> None:
        if not self._is_verified:
            await self._in_thread(partial(verify_owner, self._store, self._broker.cluster_id, self._url))
            self._is_verified = True

    async def prepare(self, topic: Topic) -> None:
        """Return when records of a topic may be written to the archive, which then describes the topic."""
        await self._verify()
        await self._describe(topic)

    async def _in_thread(self, job: Callable[[], T]) -> T:
        return await self._broker.loop.run_in_executor(self._writer, job)

    def _check_stopping(self) -> None:
        if self._is_stopping:
            raise ArchiveError("the broker stops: the upload is repeated at the next start")

    # ---------------------------------------------------------------- topics

    async def _archive_partition(self, topic: Topic, partition: Partition) -> None:
        found = partition.log
        if not isinstance(found, PartitionLog) or found.is_deleted:
            return
        folder = object_prefix(topic.id, partition.index)
        if topic.config.is_tiered:
            self._untiered.discard(folder)
            await self._in_thread(partial(delete_archived, self._store, found.directory, folder))
            if not topic.config.remote_log_copy_disable:
                await self._upload(topic, found, folder)
            await self.tails.delete_covered(partition, folder)
            await self._save_start(found, folder)
        elif folder not in self._untiered or has_archived(found):
            await self._stop_tiering(topic, found, folder)

    async def _stop_tiering(self, topic: Topic, found: PartitionLog, folder: str) -> None:
        """Delete the objects of a topic that is no longer tiered; again, if a crash interrupted it."""
        stop_tiering(found)
        if await self._in_thread(partial(delete_archived, self._store, found.directory, folder)):
            names = [f"topics/{topic.id}.json", folder + START_OFFSET]
            await self._in_thread(partial(self._store.delete, names))
            self._described.pop(topic.id, None)
            self._starts.pop(folder, None)
        self._untiered.add(folder)

    async def _upload(self, topic: Topic, found: PartitionLog, folder: str) -> None:
        recovery_point = found.recovery_point
        waiting = archivable(found, recovery_point)
        if not waiting:
            return
        await self._describe(topic)
        # A crash must not truncate what is in the archive.
        await self._broker.save_checkpoint()
        for each in waiting:
            await self._upload_segment(found, each, folder)

    async def _upload_segment(self, found: PartitionLog, each: ArchivableSegment, folder: str) -> None:
        segment = each.segment
        if segment.is_deleted:
            return
        job = partial(
            upload_segment, self._store, segment, each.end_offset, folder, check=self._check_stopping
        )
        try:
            manifest = await self._in_thread(job)
        except OSError:
            if _was_deleted(segment, found):
                return
            raise
        if _was_deleted(segment, found):
            segment.unlink()  # marks the new objects as deleted
        else:
            segment.manifest = manifest
            log.info("%s is in the archive", segment.path)

    async def _describe(self, topic: Topic) -> None:
        """Store the description of a topic before its first segment, and when it changes."""
        fields = {
            "name": topic.name,
            "id": str(topic.id),
            "partitions": len(topic.partitions),
            "configs": dict(topic.config.overrides),
        }
        data = json.dumps(fields).encode()
        if self._described.get(topic.id) != data:
            await self._in_thread(partial(self._store.put, f"topics/{topic.id}.json", data))
            self._described[topic.id] = data

    async def _save_start(self, found: PartitionLog, folder: str) -> None:
        """Store the log start offset, so that deleted records do not come back with a restored broker."""
        start = found.start_offset
        if has_archived(found) and self._starts.get(folder, 0) != start:
            await self._in_thread(partial(self._store.put, folder + START_OFFSET, str(start).encode()))
            self._starts[folder] = start

    def _delete_topics(self) -> None:
        """Delete the objects of deleted topics."""
        folder = self._broker.config.data / DELETIONS
        for note in sorted(folder.iterdir()) if folder.exists() else ():
            topic_id, _, partition = note.name.rpartition(".")
            self._store.delete([f"topics/{topic_id}.json"])
            delete_partition_objects(self._store, topic_id, int(partition))
            note.unlink()

    # ---------------------------------------------------------------- internal topics

    async def _archive_internal(self) -> None:
        """Copy the internal topics that have changed: they are compacted, and small."""
        topics = self._broker.topics
        for partition in [*(t.partitions[0] for t in topics if t.is_internal), *topics.hidden]:
            found = partition.log
            assert isinstance(found, PartitionLog)
            state = found.end_offset, found.first_dirty_offset
            if self._internal_ends.get(partition.topic) == state or found.is_swapping:
                continue
            segments = [_InternalSegment(s.base_offset, s.file, s.size) for s in found.segments if s.size]
            job = partial(self._copy_internal, partition.topic, segments, found.start_offset)
            await self._in_thread(job)
            self._internal_ends[partition.topic] = state

    def _copy_internal(self, name: str, segments: list[_InternalSegment], start_offset: int) -> None:
        manifest = f"internal/{name}.json"
        known = set(self._store.list(f"internal/{name}/"))
        entries = []
        for segment in segments:
            self._check_stopping()
            data = os.pread(segment.file.fd, segment.size, 0)
            checksum = crc32c(data)
            target = f"internal/{name}/{segment.base_offset:020d}-{segment.size}-{checksum:08x}.log"
            if target not in known:
                self._store.put(target, data)
            entries.append({"base_offset": segment.base_offset, "object": target, "checksum": checksum})
        fields = {"start_offset": start_offset, "segments": entries}
        self._store.put(manifest, json.dumps(fields).encode())
        self._store.delete(known - {str(entry["object"]) for entry in entries})


def _was_deleted(segment: LogSegment, found: PartitionLog) -> bool:
    """Whether retention, DeleteRecords or DeleteTopics deleted a segment during its upload."""
    return segment.is_deleted or found.is_deleted


def verify_owner(store: ArchiveStore, cluster_id: str, url: str) -> None:
    """Raise `ArchiveError` if another broker writes to the archive; an empty one gets the cluster id."""
    if store.size(CLUSTER_ID) is None:
        store.put(CLUSTER_ID, cluster_id.encode())
    owner = store.get(CLUSTER_ID).decode()
    if owner != cluster_id:
        raise ArchiveError(
            f"archive {url} belongs to the cluster {owner}, and this broker to {cluster_id}: use another "
            "prefix, or `headrace broker recover` to continue that cluster"
        )
