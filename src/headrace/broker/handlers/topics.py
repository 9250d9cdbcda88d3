"""Administration of topics: CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.configs import describe_topic_configs
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.topics import InvalidPartitions
from headrace.errors import HeadraceError
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from uuid import UUID

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic
    from headrace.storage.config import TopicConfig


TO_THE_END: Final = -1


async def create_topics(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """CreateTopics (key 19), versions 2–7.

    As on a single Apache Kafka node, replication factors other than 1 and −1 (the default) are rejected, so
    that no client relies on replicas that do not exist.
    """
    counts = Counter(topic.name for topic in request.topics)
    unique = {topic.name: topic for topic in request.topics}
    results = []
    async for requested in context.time_slice.over(unique.values()):
        if counts[requested.name] > 1:
            results.append(
                _creation_error(requested, ErrorCode.invalid_request, "the request contains the topic twice")
            )
        else:
            results.append(
                await _create_topic(broker, requested, context, validate_only=request.validate_only)
            )
    await broker.flusher.durable()
    return {"topics": results}


async def _create_topic(
    broker: Broker, requested: Any, context: RequestContext, *, validate_only: bool
) -> Mapping[str, Any]:
    if not context.allows(ResourceType.CLUSTER) and not context.allows(ResourceType.TOPIC, requested.name):
        return _creation_error(requested, ErrorCode.topic_authorization_failed, NOT_AUTHORIZED)
    configs = {config.name: config.value for config in requested.configs if config.value is not None}
    error = _check_replicas(broker, requested)
    if error is not None:
        return error
    try:
        partitions = _count_partitions(broker, requested)
        if validate_only:
            config = broker.topics.check_new(requested.name, partitions, configs)
            return _created(requested.name, None, partitions, config, context)
        topic = await context.time_slice.run(broker.topics.create_steps(requested.name, partitions, configs))
    except HeadraceError as fault:
        return _creation_error(requested, error_code(fault), str(fault))
    return _created(topic.name, topic.id, partitions, topic.config, context)


def _count_partitions(broker: Broker, requested: Any) -> int:
    if requested.assignments:
        indexes = sorted(assignment.partition_index for assignment in requested.assignments)
        if indexes != list(range(len(indexes))):
            raise InvalidPartitions("an assignment must contain partitions 0, 1, 2 … without gaps")
        return len(indexes)
    return (
        broker.config.default_partitions if requested.num_partitions == -1 else int(requested.num_partitions)
    )


def _check_replicas(broker: Broker, requested: Any) -> Mapping[str, Any] | None:
    if requested.assignments:
        if requested.num_partitions != -1 or requested.replication_factor != -1:
            text = "set either assignments, or partitions and replication factor, not both"
            return _creation_error(requested, ErrorCode.invalid_request, text)
        if any(tuple(assignment.broker_ids) != (broker.node_id,) for assignment in requested.assignments):
            text = f"every partition must be assigned to broker {broker.node_id}, the only one"
            return _creation_error(requested, ErrorCode.invalid_replica_assignment, text)
    elif requested.replication_factor not in (-1, 1):
        text = f"replication factor {requested.replication_factor} is not possible with one broker: use 1"
        return _creation_error(requested, ErrorCode.invalid_replication_factor, text)
    return None


def _creation_error(requested: Any, code: int, message: str) -> Mapping[str, Any]:
    return {
        "name": requested.name,
        "topic_id": None,
        "error_code": code,
        "error_message": message,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }


def _created(
    name: str, topic_id: UUID | None, partitions: int, config: TopicConfig, context: RequestContext
) -> Mapping[str, Any]:
    if not context.allows_operation(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name):
        return {
            "name": name,
            "topic_id": topic_id,
            "error_code": 0,
            "error_message": None,
            "topic_config_error_code": ErrorCode.topic_authorization_failed,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": (),
        }
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": 0,
        "error_message": None,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": describe_topic_configs(config),
    }


async def delete_topics(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DeleteTopics (key 20), versions 1–6: deletes topics by name, or by id from version 6.

    Internal topics cannot be deleted.
    """
    if context.version >= 6:
        requested = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        requested = [(name, None) for name in request.topic_names]
    unique = dict.fromkeys(requested)
    responses = [
        await _delete_topic(broker, name, topic_id, context)
        async for name, topic_id in context.time_slice.over(unique)
    ]
    await broker.flusher.durable()
    return {"responses": responses}


async def _delete_topic(
    broker: Broker, name: str | None, topic_id: UUID | None, context: RequestContext
) -> Mapping[str, Any]:
    topic = broker.topics.get(name) if name is not None else None
    if name is None and topic_id is not None:
        topic = broker.topics.by_id(topic_id)
    denial = _check_access(name, topic_id, topic, context)
    if denial is not None:
        return denial
    if topic is None:
        code = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
        return _deletion_result(name, topic_id, code, "the topic does not exist")
    if topic.is_internal:
        return _deletion_result(
            topic.name, topic.id, ErrorCode.invalid_request, "internal topics cannot be deleted"
        )
    try:
        await context.time_slice.run(
            broker.topics.delete_steps(topic.name, _delete_offsets_steps(broker, topic))
        )
    except HeadraceError as fault:
        return _deletion_result(topic.name, topic.id, error_code(fault), str(fault))
    return _deletion_result(topic.name, topic.id, 0, None)


def _check_access(
    name: str | None, topic_id: UUID | None, topic: Topic | None, context: RequestContext
) -> Mapping[str, Any] | None:
    known = name if topic is None else topic.name
    if known is None or context.allows(ResourceType.TOPIC, known):
        return None
    if name is None and not context.allows_operation(Operation.DESCRIBE, ResourceType.TOPIC, known):
        known = None
    return _deletion_result(known, topic_id, ErrorCode.topic_authorization_failed, NOT_AUTHORIZED)


def _delete_offsets_steps(broker: Broker, topic: Topic) -> Generator[None, None, None]:
    """Delete the topic's offsets, so that a new topic with the same name starts without any."""
    yield from broker.offsets.delete_topic_steps(topic.name)
    yield from broker.shares.remove_topic_steps(topic.id)


def _deletion_result(
    name: str | None, topic_id: UUID | None, code: int, message: str | None
) -> Mapping[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}


async def create_partitions(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """CreatePartitions (key 37), versions 0–3: adds partitions to topics.

    From then on keys may map to other partitions.
    """
    counts = Counter(topic.name for topic in request.topics)
    results = []
    async for requested in context.time_slice.over({topic.name: topic for topic in request.topics}.values()):
        if counts[requested.name] > 1:
            results.append(
                _partitions_result(
                    requested, ErrorCode.invalid_request, "the request contains the topic twice"
                )
            )
        else:
            results.append(
                await _add_partitions(broker, requested, context, validate_only=request.validate_only)
            )
    await broker.flusher.durable()
    return {"results": results}


async def _add_partitions(
    broker: Broker, requested: Any, context: RequestContext, *, validate_only: bool
) -> Mapping[str, Any]:
    denial = context.denial((ResourceType.TOPIC, requested.name))
    if denial is not None:
        return _partitions_result(requested, denial, NOT_AUTHORIZED)
    nodes = [tuple(assignment.broker_ids) for assignment in requested.assignments or ()]
    if any(node != (broker.node_id,) for node in nodes):
        text = f"new partitions must be assigned to broker {broker.node_id}, the only one"
        return _partitions_result(requested, ErrorCode.invalid_replica_assignment, text)
    try:
        topic = broker.topics.check_add_partitions(requested.name, requested.count)
        if topic.is_internal:
            return _partitions_result(
                requested, ErrorCode.invalid_request, "internal topics have one partition"
            )
        if nodes and len(nodes) != requested.count - len(topic.partitions):
            text = f"{len(nodes)} assignments for {requested.count - len(topic.partitions)} new partitions"
            return _partitions_result(requested, ErrorCode.invalid_replica_assignment, text)
        if not validate_only:
            await context.time_slice.run(broker.topics.add_partitions_steps(requested.name, requested.count))
    except HeadraceError as fault:
        return _partitions_result(requested, error_code(fault), str(fault))
    return _partitions_result(requested, 0, None)


def _partitions_result(requested: Any, code: int, message: str | None) -> Mapping[str, Any]:
    return {"name": requested.name, "error_code": code, "error_message": message}


async def delete_records(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DeleteRecords (key 21), versions 0–2: advances the start offset of partitions.

    The new start offset is durable before the response.
    """
    topics = []
    for topic in request.topics:
        partitions = [
            _delete_before(broker, topic.name, item, context)
            async for item in context.time_slice.over(topic.partitions)
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    try:
        await broker.save_checkpoint()
    except StorageError as fault:
        # The start offset has moved, but a crash would undo that: the client should retry.
        return {"topics": [_unsaved(topic, error_code(fault)) for topic in request.topics]}
    return {"topics": topics}


def _unsaved(topic: Any, code: int) -> Mapping[str, Any]:
    return {"name": topic.name, "partitions": [_records_result(item, code) for item in topic.partitions]}


def _delete_before(broker: Broker, name: str, item: Any, context: RequestContext) -> Mapping[str, Any]:
    if not context.allows(ResourceType.TOPIC, name):
        return _records_result(item, ErrorCode.topic_authorization_failed)
    topic = broker.topics.get(name)
    partition = topic.partition(item.partition_index) if topic is not None else None
    if topic is None or partition is None:
        return _records_result(item, ErrorCode.unknown_topic_or_partition)
    if topic.is_internal:
        return _records_result(item, ErrorCode.invalid_topic_exception)
    if topic.config.is_compacted and not topic.config.is_deleted:
        return _records_result(item, ErrorCode.policy_violation)
    log = partition.log
    try:
        log.move_start(log.high_watermark if item.offset == TO_THE_END else item.offset)
    except StorageError as fault:
        return _records_result(item, error_code(fault))
    partition.notify()
    broker.overflow.start_moved(partition)
    return _records_result(item, 0, log.start_offset)


def _records_result(item: Any, code: int, low_watermark: int = -1) -> Mapping[str, Any]:
    return {"partition_index": item.partition_index, "error_code": code, "low_watermark": low_watermark}
