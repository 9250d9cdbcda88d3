"""Settings of a topic that cannot hold together: refused when it is made or altered, with the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from headrace.storage.config import TopicConfig


def check_together(config: TopicConfig) -> None:
    """Pass when the settings of a topic hold together, or raise `InvalidConfig` that says which do not."""
    if config.is_in_memory:
        _check_memory(config)
    if config.headrace_overflow == "buffer":
        _check_buffer(config)
    else:
        _check_bounded(config)


def _check_memory(config: TopicConfig) -> None:
    if config.is_compacted:
        raise InvalidConfig(
            "a topic in memory is not compacted: leave out cleanup.policy, or use headrace.storage=disk"
        )
    if not config.is_deleted:
        raise InvalidConfig(
            "a topic in memory deletes its oldest records: leave out cleanup.policy, or use "
            "headrace.storage=disk"
        )
    if config.retention_bytes < 1:
        raise InvalidConfig(
            "a topic in memory has a bound: give retention.bytes a positive number, or leave it out for the "
            "default"
        )


def _check_buffer(config: TopicConfig) -> None:
    given = [name for name in config.overrides if name.startswith("headrace.overflow.")]
    if given:
        raise InvalidConfig(
            f"{given[0]} has no effect while headrace.overflow is buffer, which grows to the topic's "
            "retention: choose drop-oldest, drop-newest or block, or set retention.bytes instead"
        )


def _check_bounded(config: TopicConfig) -> None:
    policy, bound_bytes = config.headrace_overflow, config.headrace_overflow_bytes
    if bound_bytes < 0 and config.headrace_overflow_records < 0:
        raise InvalidConfig(
            f"headrace.overflow={policy} needs a bound: set headrace.overflow.bytes, "
            "headrace.overflow.records, or both"
        )
    if policy == "drop-oldest":
        _check_drop_oldest(config)
    else:
        _check_keeping(config)
    if policy == "block":
        _check_block(config)
    elif "headrace.overflow.timeout.ms" in config.overrides:
        raise InvalidConfig(
            f"headrace.overflow.timeout.ms has no effect with headrace.overflow={policy}, which makes nobody "
            "wait: leave it out, or choose block"
        )


def _check_drop_oldest(config: TopicConfig) -> None:
    if config.is_compacted:
        raise InvalidConfig(
            "headrace.overflow=drop-oldest would lose the latest record of keys that a compacted topic "
            "promises to keep: choose block or drop-newest, or cleanup.policy=delete"
        )


def _check_keeping(config: TopicConfig) -> None:
    """Pass when retention does not delete what the policy is there to keep."""
    policy, retention, bound = (
        config.headrace_overflow,
        config.retention_bytes,
        config.headrace_overflow_bytes,
    )
    if config.is_deleted and 0 <= retention < bound:
        raise InvalidConfig(
            f"retention.bytes={retention} deletes records before headrace.overflow.bytes={bound} is "
            f"reached, so that {policy} would lose them all the same: raise the one or lower the other"
        )
    if config.is_in_memory and bound < 0:
        raise InvalidConfig(
            f"a topic in memory forgets its oldest records at retention.bytes={retention}, whatever "
            f"headrace.overflow={policy} says of records: set headrace.overflow.bytes too, to that at most"
        )


def _check_block(config: TopicConfig) -> None:
    if not config.headrace_overflow_groups:
        raise InvalidConfig(
            "headrace.overflow=block needs to know who makes room by reading: name the consumer groups in "
            "headrace.overflow.groups"
        )
