"""CreatePartitions (key 37), versions 0–3: a topic grows; its keys go to other partitions from then on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 3)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Add partitions to each topic, or say why not."""
    times = Counter(topic.name for topic in request.topics)
    results = []
    async for asked in context.time_slice.over({topic.name: topic for topic in request.topics}.values()):
        if times[asked.name] > 1:
            results.append(_answer(asked, ErrorCode.invalid_request, "the request names the topic twice"))
        else:
            results.append(await _grow(broker, asked, context, validate_only=request.validate_only))
    await broker.flusher.durable()
    return {"results": results}


async def _grow(
    broker: Broker, asked: Any, context: RequestContext, *, validate_only: bool
) -> Mapping[str, Any]:
    nodes = [tuple(assignment.broker_ids) for assignment in asked.assignments or ()]
    if any(node != (broker.node_id,) for node in nodes):
        text = f"the only broker is {broker.node_id}: new partitions are assigned to it alone"
        return _answer(asked, ErrorCode.invalid_replica_assignment, text)
    try:
        topic = broker.topics.check_growth(asked.name, asked.count)
        if topic.is_internal:
            return _answer(asked, ErrorCode.invalid_request, "internal topics have one partition")
        if nodes and len(nodes) != asked.count - len(topic.partitions):
            text = f"{len(nodes)} assignments for {asked.count - len(topic.partitions)} new partitions"
            return _answer(asked, ErrorCode.invalid_replica_assignment, text)
        if not validate_only:
            await context.time_slice.run(broker.topics.growth_steps(asked.name, asked.count))
    except HeadraceError as fault:
        return _answer(asked, error_code(fault), str(fault))
    return _answer(asked, 0, None)


def _answer(asked: Any, code: int, message: str | None) -> Mapping[str, Any]:
    return {"name": asked.name, "error_code": code, "error_message": message}
