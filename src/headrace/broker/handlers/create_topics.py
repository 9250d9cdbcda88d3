"""CreateTopics (key 19), versions 2–7.

There is one node: a replication factor other than 1 (or −1, the default) is refused with the reason, as a
single Apache Kafka node does, so that no client relies on replicas that do not exist.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.describe_configs import describe_topic_configs
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
    """Make each topic, or say why not."""
    times = Counter(topic.name for topic in request.topics)
    once = {topic.name: topic for topic in request.topics}
    results = []
    async for asked in context.time_slice.over(once.values()):
        if times[asked.name] > 1:
            results.append(_refused(asked, ErrorCode.invalid_request, "the request names the topic twice"))
        else:
            results.append(await _create(broker, asked, context, validate_only=request.validate_only))
    await broker.flusher.durable()
    return {"topics": results}


async def _create(
    broker: Broker, asked: Any, context: RequestContext, *, validate_only: bool
) -> Mapping[str, Any]:
    configs = {config.name: config.value for config in asked.configs if config.value is not None}
    refusal = _check_replicas(broker, asked)
    if refusal is not None:
        return refusal
    try:
        partitions = _count_partitions(broker, asked)
        if validate_only:
            config = broker.topics.check_new(asked.name, partitions, configs)
            return _created(asked.name, None, partitions, config)
        topic = await context.time_slice.run(broker.topics.create_steps(asked.name, partitions, configs))
    except HeadraceError as fault:
        return _refused(asked, error_code(fault), str(fault))
    return _created(topic.name, topic.id, partitions, topic.config)


def _count_partitions(broker: Broker, asked: Any) -> int:
    if asked.assignments:
        indexes = sorted(assignment.partition_index for assignment in asked.assignments)
        if indexes != list(range(len(indexes))):
            raise InvalidPartitions("an assignment names partitions 0, 1, 2 … without a gap")
        return len(indexes)
    return broker.config.default_partitions if asked.num_partitions == -1 else int(asked.num_partitions)


def _check_replicas(broker: Broker, asked: Any) -> Mapping[str, Any] | None:
    if asked.assignments:
        if asked.num_partitions != -1 or asked.replication_factor != -1:
            text = "either assignments are given or numbers, not both"
            return _refused(asked, ErrorCode.invalid_request, text)
        if any(tuple(assignment.broker_ids) != (broker.node_id,) for assignment in asked.assignments):
            text = f"the only broker is {broker.node_id}: every partition is assigned to it alone"
            return _refused(asked, ErrorCode.invalid_replica_assignment, text)
    elif asked.replication_factor not in (-1, 1):
        text = f"replication factor {asked.replication_factor}: there is one broker, so that it can only be 1"
        return _refused(asked, ErrorCode.invalid_replication_factor, text)
    return None


def _refused(asked: Any, code: int, message: str) -> Mapping[str, Any]:
    return {
        "name": asked.name,
        "topic_id": None,
        "error_code": code,
        "error_message": message,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }


def _created(name: str, topic_id: UUID | None, partitions: int, config: TopicConfig) -> Mapping[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": 0,
        "error_message": None,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": describe_topic_configs(config),
    }
