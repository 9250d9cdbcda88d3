"""Kafka's access control lists, and who may do what by them. No I/O.

An ACL allows or denies one operation on one resource, or on all whose names begin with a prefix, or on all
(`*`), to one principal or to all (`User:*`), from one host or from all (`*`). A request is allowed if an ACL
allows it and none denies it; without any ACL it is denied. Super users may do everything.

To allow Read, Write, Delete or Alter allows Describe too, and AlterConfigs allows DescribeConfigs. To deny
one operation denies no other.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
MAX_DECISIONS: Final = 10_000
"""Decisions that are remembered for one connection."""


class Operation(enum.IntEnum):
    """Kafka's AclOperation."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(enum.IntEnum):
    """Kafka's ResourceType."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """Kafka's PatternType; ANY and MATCH occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(enum.IntEnum):
    """Kafka's AclPermissionType."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_DESCRIBING = frozenset(
    {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
)
IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: _DESCRIBING,
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""The operations that allow another one."""

OPERATIONS: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        Operation.WRITE,
        Operation.DESCRIBE,
        Operation.TWO_PHASE_COMMIT,
    ),
}
"""The operations of each type of resource, besides ALL."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One access control entry with its resource: Kafka's AclBinding."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def covers(self, name: str) -> bool:
        """Whether the entry is about the resource of that name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)

    def decides(self, operation: Operation) -> bool:
        """Whether the entry is about an operation."""
        if self.operation in (operation, Operation.ALL):
            return True
        return self.permission is Permission.ALLOW and self.operation in IMPLIED_BY.get(operation, ())


class AclFilter(NamedTuple):
    """What DescribeAcls and DeleteAcls look for; ANY and None match everything."""

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, acl: Acl) -> bool:
        """Whether the filter finds the entry."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type is PatternType.MATCH:
            return self.name is None or acl.covers(self.name)
        return self.pattern_type in (PatternType.ANY, acl.pattern_type) and self.name in (None, acl.name)


class PatternIndex:
    """The entries of one principal for one type of resource, found by the name of a resource.

    As many names as there are different lengths of prefixes are looked up, however many entries there are.
    """

    def __init__(self) -> None:
        self._literal: defaultdict[str, set[Acl]] = defaultdict(set)
        self._prefixed: defaultdict[str, set[Acl]] = defaultdict(set)
        self._lengths: Counter[int] = Counter()

    def add(self, acl: Acl) -> None:
        """Add an entry."""
        found = self._entries(acl)
        if acl.pattern_type is PatternType.PREFIXED and not found[acl.name]:
            self._lengths[len(acl.name)] += 1
        found[acl.name].add(acl)

    def remove(self, acl: Acl) -> None:
        """Remove an entry."""
        found = self._entries(acl)
        found[acl.name].discard(acl)
        if not found[acl.name]:
            del found[acl.name]
            if acl.pattern_type is PatternType.PREFIXED:
                self._lengths -= Counter({len(acl.name): 1})

    def _entries(self, acl: Acl) -> defaultdict[str, set[Acl]]:
        return self._prefixed if acl.pattern_type is PatternType.PREFIXED else self._literal

    def covering(self, name: str) -> Iterator[Acl]:
        """The entries that are about the resource of that name."""
        yield from self._literal.get(name, ())
        if name != WILDCARD:
            yield from self._literal.get(WILDCARD, ())
        for length in self._lengths:
            if length <= len(name):
                yield from self._prefixed.get(name[:length], ())

    def __iter__(self) -> Iterator[Acl]:
        for entries in (self._literal, self._prefixed):
            for found in entries.values():
                yield from found


class Authorizer:
    """Decides by the ACLs; `version` counts their changes, so that decisions can be remembered."""

    def __init__(self, super_users: frozenset[str] = frozenset()) -> None:
        self.super_users = super_users
        self.version = 0
        self._indexes: defaultdict[tuple[ResourceType, str], PatternIndex] = defaultdict(PatternIndex)

    def add(self, acls: Iterable[Acl]) -> None:
        """Count the entries from now on."""
        for acl in acls:
            self._indexes[acl.resource_type, acl.principal].add(acl)
        self.version += 1

    def remove(self, acls: Iterable[Acl]) -> None:
        """Forget the entries."""
        for acl in acls:
            self._indexes[acl.resource_type, acl.principal].remove(acl)
        self.version += 1

    def allows(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether a principal on a host may do something with a resource."""
        if principal in self.super_users:
            return True
        found = {
            acl.permission
            for index in self._indexes_of(principal, resource_type)
            for acl in index.covering(name)
            if acl.host in (host, WILDCARD) and acl.decides(operation)
        }
        return found == {Permission.ALLOW}

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there could be a resource of the type with which the principal may do something."""
        if principal in self.super_users:
            return True
        allowed, denied = [], PatternIndex()
        for index in self._indexes_of(principal, resource_type):
            for acl in index:
                if acl.host in (host, WILDCARD) and acl.operation in (operation, Operation.ALL):
                    if acl.permission is Permission.ALLOW:
                        allowed.append(acl)
                    else:
                        denied.add(acl)
        return not all(_is_shadowed(acl, denied) for acl in allowed)

    def _indexes_of(self, principal: str, resource_type: ResourceType) -> Iterator[PatternIndex]:
        for name in (principal, WILDCARD_PRINCIPAL):
            index = self._indexes.get((resource_type, name))
            if index is not None:
                yield index


def _is_shadowed(allowed: Acl, denied: PatternIndex) -> bool:
    """Whether everything that an entry allows is denied."""
    is_prefix = allowed.pattern_type is PatternType.PREFIXED
    is_all = not is_prefix and allowed.name == WILDCARD
    return any(
        (acl.pattern_type is PatternType.PREFIXED and not is_all)
        or (acl.pattern_type is PatternType.LITERAL and (acl.name == WILDCARD or not is_prefix))
        for acl in denied.covering(allowed.name)
    )


class Access:
    """What the client of one connection may do; decisions are remembered until an ACL changes."""

    __slots__ = ("_authorizer", "_decisions", "_version", "host", "principal")

    def __init__(self, authorizer: Authorizer, principal: str, host: str) -> None:
        self._authorizer = authorizer
        self._decisions: dict[tuple[Operation, ResourceType, str], bool] = {}
        self._version = authorizer.version
        self.principal = principal
        self.host = host

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do something with a resource."""
        if self._version != self._authorizer.version or len(self._decisions) > MAX_DECISIONS:
            self._decisions.clear()
            self._version = self._authorizer.version
        key = (operation, resource_type, name)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decisions[key] = self._authorizer.allows(
                self.principal, self.host, operation, resource_type, name
            )
        return decision

    def allows_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the client may do something with at least one resource of a type."""
        return self._authorizer.allows_any(self.principal, self.host, operation, resource_type)
