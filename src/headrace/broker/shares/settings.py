"""The settings of share groups, under Kafka's names: those of the broker, and those of each group."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.groups.settings import UNSERVED_OPTIONS
from headrace.storage.errors import InvalidConfig
from headrace.storage.options import Option, boolean, integer, one_of, option

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """What all share groups of a broker have in common."""

    max_groups: int = 10_000
    """Share groups that a broker keeps at most."""
    max_members: int = 1_000
    """`group.share.max.size`: members of one group."""
    burial_retry_ms: int = 5_000
    """After this time a dead letter that could not be written is tried again."""
    max_behind: int = 10_000
    """Records of one partition that may wait behind others of their key before no more are looked at."""


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
            "How long a member may take for a record before it goes to another.",
        ),
        option(
            "share.delivery.count.limit",
            "int",
            5,
            integer(1, 32_767),
            "How often a record is delivered before it is a dead letter.",
        ),
        option(
            "share.partition.max.record.locks",
            "int",
            2_000,
            integer(1),
            "Records of a partition that members hold at most.",
        ),
        option(
            "share.isolation.level",
            "string",
            "read_uncommitted",
            one_of("read_committed", "read_uncommitted"),
            "Whether records of a transaction are delivered before it is committed.",
        ),
        option(
            "share.session.timeout.ms",
            "int",
            45_000,
            integer(1),
            "After this time without a heartbeat a member is gone.",
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
            "Accepted; members are assigned partitions as soon as something changes.",
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
            "Whether rejected records, and those delivered too often, go to a topic of dead letters.",
        ),
        option(
            "headrace.key.order",
            "boolean",
            "false",
            boolean,
            "Whether a record waits until the one before it with the same key is done.",
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
    """The settings of one group, typed; those not named have their defaults."""

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
    """The settings that were given, as text: what is stored and described."""

    @classmethod
    def parse(cls, overrides: Mapping[str, str]) -> ShareGroupConfig:
        """Typed settings from names and texts, or `InvalidConfig` that says what is wrong."""
        typed = {name: _parse(name, text) for name, text in overrides.items()}
        known = {_ATTRIBUTES[name]: value for name, value in typed.items() if name in _ATTRIBUTES}
        return cls(**known, overrides=dict(overrides))


def _parse(name: str, text: str) -> Any:
    if name not in GROUP_OPTIONS:
        raise InvalidConfig(f"unknown group setting {name!r}; known are {', '.join(GROUP_OPTIONS)}")
    try:
        return GROUP_OPTIONS[name].parse(text)
    except ValueError as fault:
        raise InvalidConfig(f"invalid value {text!r} for {name}: {fault}") from fault
