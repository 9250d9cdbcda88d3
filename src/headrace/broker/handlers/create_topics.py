"""CreateTopics (key 19), versions 2–7.

As on a single Apache Kafka node, replication factors other than 1 and −1 (the default) are rejected, so that
no client relies on replicas that do not exist.
"""

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

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.storage.config import TopicConfig

VERSIONS: Final = (2, 7)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Create each topic."""
    counts = Counter(topic.name for topic in request.topics)
    unique = {topic.name: topic for topic in request.topics}
    results = []
    async for requested in context.time_slice.over(unique.values()):
        if counts[requested.name] > 1:
            results.append(
                _error(requested, ErrorCode.invalid_request, "the request contains the topic twice")
            )
        else:
            results.append(await _create(broker, requested, context, validate_only=request.validate_only))
    await broker.flusher.durable()
    return {"topics": results}


async def _create(
    broker: Broker, requested: Any, context: RequestContext, *, validate_only: bool
) -> Mapping[str, Any]:
    if not context.allows(ResourceType.CLUSTER) and not context.allows(ResourceType.TOPIC, requested.name):
        return _error(requested, ErrorCode.topic_authorization_failed, NOT_AUTHORIZED)
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
        return _error(requested, error_code(fault), str(fault))
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
            return _error(requested, ErrorCode.invalid_request, text)
        if any(tuple(assignment.broker_ids) != (broker.node_id,) for assignment in requested.assignments):
            text = f"every partition must be assigned to broker {broker.node_id}, the only one"
            return _error(requested, ErrorCode.invalid_replica_assignment, text)
    elif requested.replication_factor not in (-1, 1):
        text = f"replication factor {requested.replication_factor} is not possible with one broker: use 1"
        return _error(requested, ErrorCode.invalid_replication_factor, text)
    return None


def _error(requested: Any, code: int, message: str) -> Mapping[str, Any]:
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
