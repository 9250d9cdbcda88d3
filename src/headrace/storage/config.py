"""Topic settings under Kafka's names.

`TopicConfig.parse({"retention.ms": "60000"})` validates names and values, and returns typed settings.
`OPTIONS` describes all settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
DAY_MS: Final = 24 * 3600 * 1000
SAME_AS_RETENTION: Final = -2
"""The value of the local retention that means the retention of the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting: its Kafka name and type, its default as text, its description, and a parser."""

    name: str
    kind: str
    default: str
    doc: str
    parse: Callable[[str], Any]

    @property
    def attribute(self) -> str:
        """The name of the setting in Python."""
        return self.name.replace(".", "_")


def option(name: str, kind: str, default: object, parse: Callable[[str], Any], doc: str) -> Option:
    """An entry of a table of settings."""
    return Option(name=name, kind=kind, default=str(default), doc=doc, parse=parse)


def integer(low: int, high: int = INT_MAX) -> Callable[[str], int]:
    """A parser of integers between two bounds."""

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"it must be between {low} and {high}")
        return value

    return parse


def one_of(*allowed: str) -> Callable[[str], str]:
    """A parser of an enumeration."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return text

    return parse


def boolean(text: str) -> bool:
    """Parse true and false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError("it must be between 0 and 1")
    return value


def _policies(text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(",")) if text.strip() else frozenset()
    if not policies <= {"delete", "compact"}:
        raise ValueError("it must be delete, compact, compact,delete, or empty to keep every record")
    return policies


def _names(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _bound(text: str) -> int:
    value = int(text)
    if value != -1 and not 1 <= value <= LONG_MAX:
        raise ValueError("it must be at least 1, or -1 for no limit")
    return value


def _gzip_level(text: str) -> int:
    value = int(text)
    if value != -1 and not 1 <= value <= 9:
        raise ValueError("it must be between 1 and 9, or -1 for the default")
    return value


_SMALLEST_SEGMENT: Final = 2**20
_SIZE = integer(0, INT_MAX)
_DURATION = integer(0, LONG_MAX)
_LIMIT = integer(-1, LONG_MAX)

_NO_RECOMPRESSION: Final = "Accepted; batches are stored as their producer compressed them."
_NO_REPLICATION: Final = "Accepted; one node replicates nothing."

OPTIONS: Final[Mapping[str, Option]] = {
    each.name: each
    for each in (
        option(
            "cleanup.policy",
            "list",
            "delete",
            _policies,
            "How old records are removed: delete, compact, both, or empty to keep every record.",
        ),
        option("compression.gzip.level", "int", -1, _gzip_level, _NO_RECOMPRESSION),
        option("compression.lz4.level", "int", 9, integer(1, 17), _NO_RECOMPRESSION),
        option(
            "compression.type",
            "string",
            "producer",
            one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            _NO_RECOMPRESSION,
        ),
        option("compression.zstd.level", "int", 3, integer(-131_072, 22), _NO_RECOMPRESSION),
        option("delete.retention.ms", "long", DAY_MS, _DURATION, "How long compaction retains a tombstone."),
        option(
            "file.delete.delay.ms",
            "long",
            60_000,
            _DURATION,
            "Accepted; a deleted file stays open for its readers.",
        ),
        option("follower.replication.throttled.replicas", "list", "", _names, _NO_REPLICATION),
        option("flush.messages", "long", LONG_MAX, integer(1, LONG_MAX), "Accepted; --flush decides."),
        option("flush.ms", "long", LONG_MAX, _DURATION, "Accepted; --flush decides."),
        option(
            "headrace.queue",
            "boolean",
            "false",
            boolean,
            "Whether to delete records that all share groups have acknowledged.",
        ),
        option("index.interval.bytes", "int", 4096, _SIZE, "Bytes of log between two index entries."),
        option("leader.replication.throttled.replicas", "list", "", _names, _NO_REPLICATION),
        option(
            "local.retention.bytes",
            "long",
            SAME_AS_RETENTION,
            integer(-2, LONG_MAX),
            "Bytes of a tiered partition retained on the local disk; -2 for retention.bytes.",
        ),
        option(
            "local.retention.ms",
            "long",
            SAME_AS_RETENTION,
            integer(-2, LONG_MAX),
            "How long a tiered topic retains archived records on the local disk; -2 for retention.ms.",
        ),
        option(
            "max.compaction.lag.ms",
            "long",
            LONG_MAX,
            integer(1, LONG_MAX),
            "The longest time before a record is compacted.",
        ),
        option("max.message.bytes", "int", 1_048_588, _SIZE, "The largest record batch that is accepted."),
        option(
            "message.timestamp.after.max.ms",
            "long",
            3_600_000,
            _DURATION,
            "How far a timestamp may be ahead of the broker's clock.",
        ),
        option(
            "message.timestamp.before.max.ms",
            "long",
            LONG_MAX,
            _DURATION,
            "How far a timestamp may be behind the broker's clock.",
        ),
        option(
            "message.timestamp.type",
            "string",
            "CreateTime",
            one_of("CreateTime", "LogAppendTime"),
            "Whether timestamps are the producer's or the broker's.",
        ),
        option(
            "min.cleanable.dirty.ratio",
            "double",
            0.5,
            _ratio,
            "The ratio of uncompacted bytes that starts compaction.",
        ),
        option(
            "min.compaction.lag.ms", "long", 0, _DURATION, "The shortest time before a record is compacted."
        ),
        option("min.insync.replicas", "int", 1, integer(1, INT_MAX), "Accepted; one node has one replica."),
        option("preallocate", "boolean", "false", boolean, "Accepted; files grow as they are written."),
        option(
            "remote.log.copy.disable",
            "boolean",
            "false",
            boolean,
            "Whether to stop archiving segments; those in the archive stay readable.",
        ),
        option(
            "remote.log.delete.on.disable",
            "boolean",
            "false",
            boolean,
            "Whether to delete the archived records when remote.storage.enable is set to false.",
        ),
        option(
            "remote.storage.enable",
            "boolean",
            "false",
            boolean,
            "Whether closed segments are copied to the broker's archive (tiered storage).",
        ),
        option("retention.bytes", "long", -1, _LIMIT, "Bytes retained in a partition; -1 for no limit."),
        option(
            "retention.ms",
            "long",
            7 * DAY_MS,
            _LIMIT,
            "How long records are retained, in milliseconds; -1 for no limit.",
        ),
        option(
            "segment.bytes", "int", 2**30, integer(1024, INT_MAX), "The size at which a segment is closed."
        ),
        option(
            "segment.index.bytes", "int", 10 * 2**20, integer(4, INT_MAX), "The largest index of a segment."
        ),
        option("segment.jitter.ms", "long", 0, _DURATION, "Accepted; segments roll without jitter."),
        option(
            "segment.ms", "long", 7 * DAY_MS, integer(1, LONG_MAX), "The age at which a segment is closed."
        ),
        option(
            "unclean.leader.election.enable",
            "boolean",
            "false",
            boolean,
            "Accepted; a single node has no leader election.",
        ),
        # Settings that Apache Kafka does not have.
        option(
            "headrace.storage",
            "string",
            "disk",
            one_of("disk", "memory"),
            "Where records are stored; those in memory are lost at a restart.",
        ),
        option(
            "headrace.archive.acks",
            "boolean",
            "false",
            boolean,
            "Whether an acknowledgment of a tiered topic waits until the records are in the archive.",
        ),
        option(
            "headrace.overflow",
            "string",
            "buffer",
            one_of("buffer", "drop-oldest", "drop-newest", "block"),
            "What happens to new records when a partition is full.",
        ),
        option("headrace.overflow.bytes", "long", -1, _bound, "The limit in bytes; -1 for none."),
        option("headrace.overflow.records", "long", -1, _bound, "The limit in records; -1 for none."),
        option(
            "headrace.overflow.groups",
            "list",
            "",
            _names,
            "Consumer groups: records that all of them have read do not count. Without groups, all count.",
        ),
        option(
            "headrace.overflow.timeout.ms",
            "long",
            10_000,
            _DURATION,
            "How long a produce request waits for room before it times out.",
        ),
    )
}

MEMORY_BYTES: Final = 32 * 2**20
"""The default of retention.bytes for in-memory topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The typed settings of one topic, with Kafka's defaults."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = DAY_MS
    headrace_queue: bool = False
    index_interval_bytes: int = 4096
    local_retention_bytes: int = SAME_AS_RETENTION
    local_retention_ms: int = SAME_AS_RETENTION
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    segment_bytes: int = 2**30
    segment_index_bytes: int = 10 * 2**20
    segment_ms: int = 7 * DAY_MS
    headrace_storage: str = "disk"
    headrace_archive_acks: bool = False
    headrace_overflow: str = "buffer"
    headrace_overflow_bytes: int = -1
    headrace_overflow_records: int = -1
    headrace_overflow_groups: frozenset[str] = frozenset()
    headrace_overflow_timeout_ms: int = 10_000
    overrides: Mapping[str, str] = field(default_factory=dict)
    """The settings that were set, as text."""

    @classmethod
    def parse(cls, overrides: Mapping[str, str]) -> TopicConfig:
        """Parse settings; raises `InvalidConfig`."""
        given = {**default_texts(overrides), **overrides}
        typed = {name: _parse_one(name, text) for name, text in given.items()}
        known = {OPTIONS[name].attribute: value for name, value in typed.items()}
        effective = {name: value for name, value in known.items() if name in cls.__dataclass_fields__}
        config = cls(**effective, overrides=dict(overrides))
        check_consistency(config)
        return config

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted."""
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether old segments are deleted by time and size."""
        return "delete" in self.cleanup_policy

    @property
    def is_in_memory(self) -> bool:
        """Whether records are only in memory."""
        return self.headrace_storage == "memory"

    @property
    def is_tiered(self) -> bool:
        """Whether records are also in the archive."""
        return self.remote_storage_enable

    @property
    def effective_local_retention_ms(self) -> int:
        """How long archived records stay on the local disk; -1 for no limit."""
        same = self.local_retention_ms == SAME_AS_RETENTION
        return self.retention_ms if same else self.local_retention_ms

    @property
    def effective_local_retention_bytes(self) -> int:
        """Bytes of a partition that stay on the local disk; -1 for no limit."""
        same = self.local_retention_bytes == SAME_AS_RETENTION
        return self.retention_bytes if same else self.local_retention_bytes

    def text(self, name: str) -> str:
        """A setting as text: its value, or its default in this topic."""
        known = {**default_texts(self.overrides), **self.overrides}
        return known.get(name, OPTIONS[name].default)


def default_texts(overrides: Mapping[str, str]) -> dict[str, str]:
    """Defaults that depend on other settings of the topic."""
    if overrides.get("headrace.storage") == "memory":
        return {"retention.bytes": str(MEMORY_BYTES)}
    bound = overrides.get("headrace.overflow.bytes", "-1")
    if overrides.get("headrace.overflow") == "drop-oldest" and bound.isdigit():
        # Segments are deleted as a whole: with large ones the disk would hold far more than the limit.
        return {"segment.bytes": str(min(max(int(bound) // 4, _SMALLEST_SEGMENT), 2**30))}
    return {}


def _parse_one(name: str, text: str) -> Any:
    option = OPTIONS.get(name)
    if option is None:
        raise InvalidConfig(f"unknown topic setting {name!r}; known are {', '.join(OPTIONS)}")
    try:
        return option.parse(text)
    except ValueError as fault:
        raise InvalidConfig(f"invalid value {text!r} for {name}: {fault}") from fault


def check_consistency(config: TopicConfig) -> None:
    """Raise `InvalidConfig` if settings contradict each other."""
    if config.is_in_memory:
        _check_memory(config)
    if config.is_tiered:
        _check_tiered(config)
    if config.headrace_archive_acks and (not config.is_tiered or config.remote_log_copy_disable):
        raise InvalidConfig(
            "headrace.archive.acks=true needs remote.storage.enable=true and remote.log.copy.disable=false"
        )
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
            "a topic in memory has a limit: set retention.bytes to a positive number, or leave it out"
        )


def _check_tiered(config: TopicConfig) -> None:
    if config.cleanup_policy != {"delete"}:
        raise InvalidConfig(
            "remote.storage.enable=true needs cleanup.policy=delete: compacted topics are not tiered"
        )
    if config.is_in_memory:
        raise InvalidConfig("a topic in memory is not tiered: leave out remote.storage.enable")
    if config.headrace_overflow != "buffer":
        raise InvalidConfig(
            f"headrace.overflow={config.headrace_overflow} measures records that a tiered topic may have "
            "only in the archive: leave out headrace.overflow or remote.storage.enable"
        )
    for name, local, whole in (
        ("retention.ms", config.local_retention_ms, config.retention_ms),
        ("retention.bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        _check_local_retention(config, name, local, whole)


def _check_local_retention(config: TopicConfig, name: str, local: int, whole: int) -> None:
    if local in (SAME_AS_RETENTION, whole):
        return
    if config.remote_log_copy_disable:
        raise InvalidConfig(
            f"with remote.log.copy.disable=true local.{name} must be {name}={whole} or -2, because records "
            "that are not archived exist only on the local disk"
        )
    if whole >= 0 and not 0 <= local <= whole:
        raise InvalidConfig(
            f"local.{name}={local} is more than {name}={whole}: lower the first or raise the second"
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
            f"headrace.overflow={policy} needs a limit: set headrace.overflow.bytes, "
            "headrace.overflow.records, or both"
        )
    if policy == "drop-oldest":
        _check_drop_oldest(config)
    else:
        _check_retention(config)
    if policy == "block":
        _check_block(config)
    elif "headrace.overflow.timeout.ms" in config.overrides:
        raise InvalidConfig(
            f"headrace.overflow.timeout.ms has no effect with headrace.overflow={policy}, which "
            "never delays producers: leave it out, or choose block"
        )


def _check_drop_oldest(config: TopicConfig) -> None:
    if config.is_compacted:
        raise InvalidConfig(
            "headrace.overflow=drop-oldest would lose the latest record of keys that a compacted topic "
            "promises to keep: choose block or drop-newest, or cleanup.policy=delete"
        )


def _check_retention(config: TopicConfig) -> None:
    """Raise `InvalidConfig` if retention deletes records before the limit is reached."""
    policy, retention, bound = (
        config.headrace_overflow,
        config.retention_bytes,
        config.headrace_overflow_bytes,
    )
    if config.is_deleted and 0 <= retention < bound:
        raise InvalidConfig(
            f"retention.bytes={retention} deletes records before headrace.overflow.bytes={bound} is "
            f"reached, so {policy} could not keep them: raise the first or lower the second"
        )
    if config.is_in_memory and bound < 0:
        raise InvalidConfig(
            f"a topic in memory deletes its oldest records at retention.bytes={retention}, also with "
            f"headrace.overflow={policy}: set headrace.overflow.bytes to at most {retention}"
        )


def _check_block(config: TopicConfig) -> None:
    if not config.headrace_overflow_groups:
        raise InvalidConfig(
            "headrace.overflow=block needs consumer groups, which make room by reading: set "
            "headrace.overflow.groups"
        )
