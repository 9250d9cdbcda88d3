"""Settings of share groups with Kafka's names: those of the broker, and those of each group."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.groups.settings import UNSERVED_OPTIONS
from headrace.storage.config import Option, boolean, integer, one_of, option
from headrace.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """Settings for all share groups of a broker."""

    max_groups: int = 10_000
    """`group.share.max.groups`: the largest number of share groups."""
    max_members: int = 1_000
    """`group.share.max.size`: the largest number of members of a group."""
    dead_letter_retry_ms: int = 5_000
    """A dead letter that could not be written is retried after this time."""
    max_blocked: int = 10_000
    """Records of a partition that may wait for others of their key before no more are read."""


BY_DURATION: Final = "by_duration:"
_NUMBER: Final = r"([-+]?\d{1,12})"
_DURATION: Final = re.compile(
    rf"([-+]?)P(?!$)(?:{_NUMBER}D)?(?:T(?!$)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:([-+]?\d{{1,12}}(?:[.,]\d{{0,9}})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


def offset_reset(text: str) -> str | timedelta:
    """Parse `share.auto.offset.reset`: `earliest`, `latest`, or `by_duration:` and an ISO-8601 duration.

    >>> offset_reset("by_duration:P1DT12H")
    datetime.timedelta(days=1, seconds=43200)

    The duration has the form that Java's `Duration.parse` accepts, `PnDTnHnMn.nS`, and is not negative.
    """
    if text in ("earliest", "latest"):
        return text
    found = _DURATION.fullmatch(text.removeprefix(BY_DURATION)) if text.startswith(BY_DURATION) else None
    if found is None:
        raise ValueError("it must be earliest, latest or by_duration:<PnDTnHnMn.nS>")
    sign, *numbers = found.groups()
    days, hours, minutes, seconds = (float((number or "0").replace(",", ".")) for number in numbers)
    try:
        duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise ValueError("the duration is too long") from None
    if sign == "-":
        duration = -duration
    if duration < timedelta(0):
        raise ValueError("the duration must not be negative")
    return duration


GROUP_OPTIONS: Final[Mapping[str, Option]] = {
    each.name: each
    for each in (
        option(
            "share.auto.offset.reset",
            "string",
            "latest",
            offset_reset,
            "Where a new share group starts: earliest, latest, or by_duration:<PnDTnHnMn.nS> before now.",
        ),
        option(
            "share.record.lock.duration.ms",
            "int",
            30_000,
            integer(1),
            "How long a record is locked for the member that acquired it.",
        ),
        option(
            "share.delivery.count.limit",
            "int",
            5,
            integer(1, 32_767),
            "How often a record is delivered before it becomes a dead letter.",
        ),
        option(
            "share.partition.max.record.locks",
            "int",
            2_000,
            integer(1, 10_000),  # as in Apache Kafka (group.share.max.partition.max.record.locks)
            "The largest number of acquired records of a partition.",
        ),
        option(
            "share.isolation.level",
            "string",
            "read_uncommitted",
            one_of("read_committed", "read_uncommitted"),
            "Whether records of open transactions are delivered.",
        ),
        option(
            "share.session.timeout.ms",
            "int",
            45_000,
            integer(1),
            "A member without a heartbeat for this time is removed.",
        ),
        option(
            "share.heartbeat.interval.ms",
            "int",
            5_000,
            integer(1),
            "How often members send heartbeats.",
        ),
        option(
            "share.assignment.interval.ms",
            "int",
            1_000,
            integer(0, 15_000),
            "Accepted; assignments are updated immediately.",
        ),
        option(
            "share.renew.acknowledge.enable",
            "boolean",
            "true",
            boolean,
            "Whether a member may renew the lock of a record.",
        ),
        option(
            "headrace.dead.letters",
            "boolean",
            "true",
            boolean,
            "Whether rejected records, and those at the delivery limit, go to a dead-letter topic.",
        ),
        option(
            "headrace.key.order",
            "boolean",
            "false",
            boolean,
            "Whether a record waits until the previous one with its key is acknowledged.",
        ),
        *UNSERVED_OPTIONS.values(),
    )
}

_ATTRIBUTES: Final = {
    "share.auto.offset.reset": "auto_offset_reset",
    "share.record.lock.duration.ms": "lock_duration_ms",
    "share.delivery.count.limit": "delivery_count_limit",
    "share.partition.max.record.locks": "max_record_locks",
    "share.isolation.level": "isolation_level",
    "share.session.timeout.ms": "session_timeout_ms",
    "share.heartbeat.interval.ms": "heartbeat_interval_ms",
    "share.renew.acknowledge.enable": "can_renew",
    "headrace.dead.letters": "dead_letters",
    "headrace.key.order": "key_order",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupConfig:
    """The typed settings of one group."""

    auto_offset_reset: str | timedelta = "latest"
    lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000
    isolation_level: str = "read_uncommitted"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    can_renew: bool = True
    dead_letters: bool = True
    key_order: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)
    """The settings that are not defaults, as text, as they are stored and described."""

    @classmethod
    def parse(cls, overrides: Mapping[str, str]) -> ShareGroupConfig:
        """Parse names and texts; raises `InvalidConfig` for an unknown name or an invalid value."""
        typed = {name: _parse(name, text) for name, text in overrides.items()}
        known = {_ATTRIBUTES[name]: value for name, value in typed.items() if name in _ATTRIBUTES}
        return cls(**known, overrides=dict(overrides))


def _parse(name: str, text: str) -> Any:
    if name not in GROUP_OPTIONS:
        raise InvalidConfig(f"unknown group setting {name!r}; the settings are {', '.join(GROUP_OPTIONS)}")
    try:
        return GROUP_OPTIONS[name].parse(text)
    except ValueError as fault:
        raise InvalidConfig(f"invalid value {text!r} for {name}: {fault}") from fault
