"""ShareGroupDescribe (key 77), version 1: the members of share groups, and what they read.

GROUP_ID_NOT_FOUND for a group that is not there, and for a consumer group. As in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.describe_groups import ALL_OPERATIONS, NOT_ASKED
from headrace.protocol.responses import LazyArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.shares.groups import ShareGroup, ShareGroupMember

VERSIONS: Final = (1, 1)


def handle(broker: Broker, request: Any, _context: RequestContext) -> Mapping[str, Any]:
    """Each group that was asked for, in that order."""
    operations = ALL_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    once = dict.fromkeys(request.group_ids)
    return {
        "groups": LazyArray(
            once, lambda group_id: {**_body(broker, group_id), "authorized_operations": operations}
        )
    }


def _body(broker: Broker, group_id: str) -> dict[str, Any]:
    group = broker.shares.group(group_id)
    return _missing(group_id) if group is None else _present(broker, group)


def _missing(group_id: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.group_id_not_found,
        "error_message": f"Group {group_id} not found.",
        "group_id": group_id,
        "group_state": "Dead",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
    }


def _present(broker: Broker, group: ShareGroup) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.epoch,
        "assignor_name": "simple",
        "members": [_member(broker, member) for member in group.members.values()],
    }


def _member(broker: Broker, member: ShareGroupMember) -> dict[str, Any]:
    topics = [(broker.topics.by_id(topic), partitions) for topic, partitions in member.assignment]
    return {
        "member_id": member.id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscription,
        "assignment": {
            "topic_partitions": [
                {"topic_id": topic.id, "topic_name": topic.name, "partitions": partitions}
                for topic, partitions in topics
                if topic is not None
            ]
        },
    }
