"""CreatePartitions (key 37), versions 0–3: adds partitions to topics.

From then on keys may map to other partitions.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import ResourceType
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 3)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Add partitions to each topic."""
    counts = Counter(topic.name for topic in request.topics)
    results = []
    async for requested in context.time_slice.over({topic.name: topic for topic in request.topics}.values()):
        if counts[requested.name] > 1:
            results.append(
                _result(requested, ErrorCode.invalid_request, "the request contains the topic twice")
            )
        else:
            results.append(await _grow(broker, requested, context, validate_only=request.validate_only))
    await broker.flusher.durable()
    return {"results": results}


async def _grow(
    broker: Broker, requested: Any, context: RequestContext, *, validate_only: bool
) -> Mapping[str, Any]:
    denial = context.denial((ResourceType.TOPIC, requested.name))
    if denial is not None:
        return _result(requested, denial, NOT_AUTHORIZED)
    nodes = [tuple(assignment.broker_ids) for assignment in requested.assignments or ()]
    if any(node != (broker.node_id,) for node in nodes):
        text = f"new partitions must be assigned to broker {broker.node_id}, the only one"
        return _result(requested, ErrorCode.invalid_replica_assignment, text)
    try:
        topic = broker.topics.check_add_partitions(requested.name, requested.count)
        if topic.is_internal:
            return _result(requested, ErrorCode.invalid_request, "internal topics have one partition")
        if nodes and len(nodes) != requested.count - len(topic.partitions):
            text = f"{len(nodes)} assignments for {requested.count - len(topic.partitions)} new partitions"
            return _result(requested, ErrorCode.invalid_replica_assignment, text)
        if not validate_only:
            await context.time_slice.run(broker.topics.add_partitions_steps(requested.name, requested.count))
    except HeadraceError as fault:
        return _result(requested, error_code(fault), str(fault))
    return _result(requested, 0, None)


def _result(requested: Any, code: int, message: str | None) -> Mapping[str, Any]:
    return {"name": requested.name, "error_code": code, "error_message": message}
