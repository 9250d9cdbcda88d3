"""ShareGroupDescribe (key 77), version 1: the members of share groups and their assignments.

As in Apache Kafka, a missing group and a consumer group get GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.describe_groups import group_operations
from headrace.broker.security.acls import ResourceType
from headrace.protocol.responses import LazyArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.shares.groups import ShareGroup, ShareGroupMember

VERSIONS: Final = (1, 1)
HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns each group in the order of the request; duplicates are ignored."""
    requested = request.include_authorized_operations

    def described(group_id: str) -> Mapping[str, Any]:
        operations = group_operations(context, group_id, requested=requested)
        return _body(broker, group_id, context) | {"authorized_operations": operations}

    return {"groups": LazyArray(dict.fromkeys(request.group_ids), described)}


def _body(broker: Broker, group_id: str, context: RequestContext) -> dict[str, Any]:
    denial = context.denial((ResourceType.GROUP, group_id))
    if denial is not None:
        return _missing(group_id) | {"error_code": denial, "error_message": None}
    group = broker.shares.group(group_id)
    if group is None:
        return _missing(group_id)
    body = _present(broker, group)
    names = {name for member in group.members.values() for name in member.subscription}
    denial = context.denial(*((ResourceType.TOPIC, name) for name in sorted(names)))
    if denial is not None:
        return body | {"error_code": denial, "error_message": HIDDEN_TOPICS, "members": []}
    return body


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
