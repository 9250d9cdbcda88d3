"""Consumer groups with their lag, and queues (share groups) with their dead letters."""

from __future__ import annotations

from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from headrace.cli import group as group_admin
from headrace.cli import queue_admin
from headrace.cli.reader import read_position
from headrace.gateway.errors import HttpError

if TYPE_CHECKING:
    from headrace.cli.session import BrokerSession
    from headrace.console.app import Context

MAX_GROUPS: Final = 300
MAX_LETTERS: Final = 100
SHARE: Final = "share"


def list_groups(context: Context) -> dict[str, Any]:
    """The consumer groups with their topics and lag, the largest lag first."""
    names = [each for each in group_admin.list_groups(context.session) if each.type != SHARE]
    found = [_summary(context.session, each) for each in names[:MAX_GROUPS]]
    return {"total": len(names), "groups": sorted(found, key=lambda each: (-each["lag"], each["group"]))}


def _summary(session: BrokerSession, listing: group_admin.GroupListing) -> dict[str, Any]:
    try:
        details = group_admin.describe_group(session, listing.group)
    except group_admin.UnknownGroup:  # it was deleted a moment ago
        return {
            "group": listing.group,
            "state": "dead",
            "type": listing.type,
            "members": 0,
            "lag": 0,
            "topics": [],
        }
    return {
        "group": listing.group,
        "state": details.state,
        "type": details.type,
        "members": len(details.members),
        "lag": details.lag,
        "committed": sum(part.committed or 0 for part in details.partitions),
        "topics": sorted({part.topic for part in details.partitions}),
    }


def describe_group(context: Context) -> group_admin.GroupDetails:
    """The members, committed offsets and lag of a group."""
    return group_admin.describe_group(context.session, context.path["group"])


def seek(context: Context, body: dict[str, Any]) -> dict[str, Any]:
    """Move the committed offsets of a group without members; with `dry_run` only show the changes."""
    session, group = context.session, context.path["group"]
    try:
        position = read_position(str(body.get("to", "")))
    except ValueError as fault:
        raise HttpError(HTTPStatus.BAD_REQUEST, str(fault)) from None
    group_admin.require_idle(session, group)
    topics = [str(body["topic"])] if body.get("topic") else []
    moves = group_admin.plan_moves(session, group, position, topics=topics, numbers=())
    if not body.get("dry_run"):
        after = {(move.topic, move.partition): move.after for move in moves}
        group_admin.write_committed_offsets(session, group, after)
    return {"moves": moves}


def list_queues(context: Context) -> dict[str, Any]:
    """The share groups with each of their topics."""
    return {"queues": queue_admin.list_queues(context.session)}


def describe_queue(context: Context) -> queue_admin.QueueDetails:
    """The members, progress and settings of a share group."""
    return queue_admin.describe_queue(context.session, context.path["group"])


def read_dead_letters(context: Context) -> dict[str, Any]:
    """The oldest dead letters of a queue that were not redriven."""
    session, group = context.session, context.path["group"]
    topic = queue_admin.choose_topic(session, group, context.query.get("topic") or None)
    limit = context.number("limit", 50, MAX_LETTERS)
    total = queue_admin.count_dead(session, topic, group)
    batches = queue_admin.read_dead(session, topic, group, limit)
    messages = islice((message for batch in batches for message in batch), limit)
    return {"topic": topic, "total": total, "letters": [queue_admin.show_letter(each) for each in messages]}


def redrive(context: Context, body: dict[str, Any]) -> dict[str, Any]:
    """Move dead letters back to their queue, each exactly once."""
    session, group = context.session, context.path["group"]
    topic = queue_admin.choose_topic(session, group, body.get("topic"))
    total = queue_admin.count_dead(session, topic, group)
    count = body.get("count")
    if count is not None and (not isinstance(count, int) or count < 1):
        raise HttpError(HTTPStatus.BAD_REQUEST, "count is a number of dead letters, 1 or more")
    wanted = total if count is None else min(count, total)
    moved = sum(queue_admin.redrive(session, topic, group, wanted)) if wanted else 0
    return {"topic": topic, "moved": moved, "left": total - moved}
