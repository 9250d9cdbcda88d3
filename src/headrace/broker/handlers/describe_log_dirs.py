"""DescribeLogDirs (key 35), versions 1–5: the size of each partition, and the free disk space.

The size of a tiered partition includes its archived segments: clients estimate the size of records by it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (1, 5)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the data folder as the only log directory."""
    if not context.allows(ResourceType.CLUSTER):
        return {"error_code": ErrorCode.cluster_authorization_failed, "results": []}
    wanted = None
    if request.topics is not None:
        wanted = {topic.topic: set(topic.partitions) for topic in request.topics}
    topics = [topic for topic in broker.topics if wanted is None or topic.name in wanted]
    disk = shutil.disk_usage(broker.config.data)
    folder = {
        "error_code": 0,
        "log_dir": str(broker.config.data),
        "topics": [
            await _sizes(topic, None if wanted is None else wanted[topic.name], context) for topic in topics
        ],
        "total_bytes": disk.total,
        "usable_bytes": disk.free,
    }
    return {"error_code": 0, "results": [folder]}


async def _sizes(topic: Topic, wanted: set[int] | None, context: RequestContext) -> Mapping[str, Any]:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": partition.index,
                "partition_size": partition.log.size,
                "offset_lag": 0,
                "is_future_key": False,
            }
            async for partition in context.time_slice.over(topic.partitions)
            if not wanted or partition.index in wanted
        ],
    }
