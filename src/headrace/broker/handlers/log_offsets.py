"""Offsets in the log of partitions: ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import Operation, ResourceType
from headrace.storage.errors import StorageError
from headrace.storage.partition import PartitionLog
from headrace.storage.tiering import archived_end, has_archived, local_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.storage.log import Log


LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
SPECIAL: Final = (LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD)


async def list_offsets(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """ListOffsets (key 2), versions 1–11: offsets by timestamp, and the start and end of partitions.

    Special timestamps: −1 latest, −2 earliest, −3 maximum timestamp, −4 earliest on the local disk, −5 latest
    in the archive, −6 earliest that is not in the archive yet. The last two are −1 for a topic without tiered
    storage.
    """
    committed = getattr(request, "isolation_level", 0) == 1
    topics = []
    for topic in request.topics:
        unique = {item.partition_index: item for item in topic.partitions}
        partitions = [
            await _find_offset(broker, topic.name, item, context, committed=committed)
            async for item in context.time_slice.over(unique.values())
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def _find_offset(
    broker: Broker, name: str, item: Any, context: RequestContext, *, committed: bool
) -> Mapping[str, Any]:
    topic = broker.topics.get(name)
    partition = topic.partition(item.partition_index) if topic is not None else None
    denial = context.denial((ResourceType.TOPIC, name))
    if denial is not None or partition is None:
        return _result(item, denial or ErrorCode.unknown_topic_or_partition)
    if getattr(item, "current_leader_epoch", -1) > 0:
        return _result(item, ErrorCode.unknown_leader_epoch)
    log = partition.log
    end = log.last_stable_offset if committed else log.high_watermark
    if item.timestamp in SPECIAL:
        offset = end if item.timestamp == LATEST else _boundary(log, item.timestamp)
        return _result(item, 0, offset, leader_epoch=0 if offset >= 0 else -1)
    if item.timestamp != MAX_TIMESTAMP and item.timestamp < 0:
        return _result(item, ErrorCode.unsupported_version)
    return await _by_time(broker, log, item, end, context)


def _boundary(log: Log, timestamp: int) -> int:
    """The offset at which the log or a tier of it begins or ends; −1 for none."""
    if timestamp == EARLIEST:
        return log.start_offset
    if timestamp == EARLIEST_LOCAL:
        return local_start(log) if isinstance(log, PartitionLog) else log.start_offset
    if not isinstance(log, PartitionLog) or not log.config.is_tiered:
        return -1
    end = archived_end(log)
    if timestamp == EARLIEST_PENDING_UPLOAD:
        return end
    return end - 1 if has_archived(log) else -1


async def _by_time(
    broker: Broker, log: Log, item: Any, end: int, context: RequestContext
) -> Mapping[str, Any]:
    try:
        search = (
            log.search_latest_time() if item.timestamp == MAX_TIMESTAMP else log.search_time(item.timestamp)
        )
        found = await broker.run_search(search, context.time_slice)
    except (OSError, StorageError):
        # Retention deleted a segment during the search, or the archive does not answer: the client retries.
        return _result(item, ErrorCode.kafka_storage_error)
    if found is None or found.offset >= end:
        return _result(item, 0)
    return _result(item, 0, found.offset, found.timestamp, leader_epoch=0)


def _result(
    item: Any, code: int, offset: int = -1, timestamp: int = -1, *, leader_epoch: int = -1
) -> Mapping[str, Any]:
    return {
        "partition_index": item.partition_index,
        "error_code": code,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }


async def offset_for_leader_epoch(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """OffsetForLeaderEpoch (key 23), versions 2–4: the end of leader epochs.

    The only leader epoch is 0, which ends at the high watermark.
    """
    topics = []
    for topic in request.topics:
        partitions = [
            _find_epoch_end(broker, topic.topic, p, context)
            async for p in context.time_slice.over(topic.partitions)
        ]
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


def _find_epoch_end(broker: Broker, name: str, item: Any, context: RequestContext) -> Mapping[str, Any]:
    if not context.allows(ResourceType.TOPIC, name) and not context.allows_operation(
        Operation.CLUSTER_ACTION, ResourceType.CLUSTER
    ):
        return {"error_code": ErrorCode.topic_authorization_failed, "partition": item.partition}
    topic = broker.topics.get(name)
    partition = topic.partition(item.partition) if topic is not None else None
    if partition is None:
        return {"error_code": ErrorCode.unknown_topic_or_partition, "partition": item.partition}
    if item.current_leader_epoch > 0:
        return {"error_code": ErrorCode.unknown_leader_epoch, "partition": item.partition}
    if item.leader_epoch != 0:
        return {"error_code": 0, "partition": item.partition, "leader_epoch": -1, "end_offset": -1}
    end = partition.log.high_watermark
    return {"error_code": 0, "partition": item.partition, "leader_epoch": 0, "end_offset": end}
