"""Group requests over the wire, with defaults for most fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tests.broker.groups.harness import subscription

if TYPE_CHECKING:
    from tests.broker.wire_client import WireClient

JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14
PROTOCOLS = [{"name": "range", "metadata": subscription("orders")}]


def join(wire: WireClient, version: int = 9, member_id: str = "", **fields: Any) -> Any:
    request = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
    }
    return wire.ask(JOIN, version, **(request | fields))


def enter(wire: WireClient, version: int = 9, **fields: Any) -> Any:
    """The response to a new member's last join, in as many steps as its version needs."""
    answer = join(wire, version, **fields)
    if answer.error_code is ErrorCode.member_id_required:
        answer = join(wire, version, answer.member_id, **fields)
    return answer


def sync(wire: WireClient, joined: Any, version: int = 5, **fields: Any) -> Any:
    request = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": joined.member_id, "assignment": b"work"}],
    }
    return wire.ask(SYNC, version, **(request | fields))


def stable(wire: WireClient, **fields: Any) -> Any:
    joined = enter(wire, **fields)
    assert sync(wire, joined).error_code is ErrorCode.none
    return joined
