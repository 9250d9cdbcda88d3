"""`headrace acl`: add, list and remove access control entries."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import confirm, note, print_json, print_line, print_table
from headrace.cli.session import connect
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.cli.session import BrokerSession

commands = typer.Typer(no_args_is_help=True, help="Add, list and remove the rights of users.")

CLUSTER: Final = "kafka-cluster"
"""Kafka's name for the one resource of its type."""
RESOURCE_NUMBERS: Final = {"any": 1, "topic": 2, "group": 3, "cluster": 4, "transactional-id": 5}


Resource = tuple[str, str]
ANY: Final[Resource] = ("any", "")
"""The name of all resources in a search."""


class Operation(enum.Enum):
    """What a user may do."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    IDEMPOTENT_WRITE = "idempotent-write"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AclListing:
    """An ACL: a principal, an operation, a resource, and whether it is allowed or denied."""

    user: str
    permission: str
    operation: str
    resource: str
    name: str
    pattern: str
    host: str


User = Annotated[
    str,
    typer.Argument(metavar="USER", help="Name of the user, * for all, or a principal such as User:alice."),
]
Operations = Annotated[
    list[Operation], typer.Argument(metavar="OPERATION...", help="Operations, for example read or write.")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic, or * for all; repeatable.")
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="A group, or * for all; repeatable.")
]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="NAME", help="A transactional id, or * for all; repeatable."),
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster as a whole.")]
Prefix = Annotated[
    bool, typer.Option("--prefix", help="All resources whose names begin with the names given.")
]
Deny = Annotated[bool, typer.Option("--deny", help="Deny instead of allow; a denial takes precedence.")]
Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="IP address of the client (default: * for all).")
]


@commands.command()
def add(
    *,
    user: User,
    operations: Operations,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: Cluster = False,
    prefix: Prefix = False,
    deny: Deny = False,
    host: Host = "*",
    broker: options.Broker = None,
) -> None:
    """Allow, or deny, a user operations on topics, groups, transactional ids or the cluster.

    Example: headrace acl add alice read write --topic orders --group shop
    """
    resources = _resources(topic, group, transactional_id, cluster=cluster)
    if not resources:
        raise Misuse("no resource is named: use --topic, --group, --transactional-id or --cluster.")
    if prefix and any(name == "*" for _, name in resources):
        raise Misuse("--prefix and * exclude each other: * means all resources.")
    entries = [
        AclListing(
            user=_principal(user),
            permission="deny" if deny else "allow",
            operation=operation.value,
            resource=kind,
            name=name,
            pattern="prefixed" if prefix and kind != "cluster" else "literal",
            host=host,
        )
        for kind, name in resources
        for operation in operations
    ]
    with connect(broker) as session:
        add_acls(session, entries)
    for entry in entries:
        print_line(f"added {_sentence(entry)}")


@commands.command("list")
def list_(
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Only those of this user.")
    ] = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: Cluster = False,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """List the entries: all, or those of a user, or those that apply to a resource.

    Example: headrace acl list --topic orders
    """
    principal = None if user is None else _principal(user)
    resources = _resources(topic, group, transactional_id, cluster=cluster) or [ANY]
    with connect(broker) as session:
        found = {
            entry for resource in resources for entry in read_acls(session, principal, resource, "match")
        }
    entries = sorted(found)
    if as_json:
        print_json(entries)
    elif not entries:
        note("there are no such entries; `headrace acl add USER OPERATION... --topic NAME` adds one")
    else:
        rows = [
            (entry.user, entry.permission, entry.operation, entry.resource, _shown_name(entry), entry.host)
            for entry in entries
        ]
        print_table(["user", "permission", "operation", "resource", "name", "host"], rows)


@commands.command()
def remove(
    *,
    user: User,
    operations: Annotated[
        list[Operation] | None,
        typer.Argument(metavar="[OPERATION...]", help="Operations (default: all entries that match)."),
    ] = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: Cluster = False,
    prefix: Prefix = False,
    yes: options.Yes = False,
    broker: options.Broker = None,
) -> None:
    """Remove entries of a user: all, or those with exactly these resources and operations.

    Example: headrace acl remove alice write --topic orders --yes
    """
    resources = _resources(topic, group, transactional_id, cluster=cluster) or [ANY]
    wanted = {operation.value for operation in operations or ()}
    with connect(broker) as session:
        entries = sorted(
            entry
            for resource in resources
            for entry in read_acls(session, _principal(user), resource, "any")
            if (not wanted or entry.operation in wanted)
            and (resource == ANY or resource[0] == "cluster" or (entry.pattern == "prefixed") == prefix)
        )
        if not entries:
            note("there are no such entries: nothing changed")
            return
        confirm(f"Remove {len(entries)} entries of {_principal(user)}?", yes=yes)
        remove_acls(session, entries)
    for entry in entries:
        print_line(f"removed {_sentence(entry)}")


def add_acls(session: BrokerSession, entries: Iterable[AclListing]) -> None:
    """Add entries."""
    for entry in entries:
        session.request_one("create_acls", _binding(entry), f"add {_sentence(entry)}")


def remove_acls(session: BrokerSession, entries: Iterable[AclListing]) -> None:
    """Remove exactly these entries."""
    from headrace.cli.librdkafka import AclBindingFilter

    for entry in entries:
        session.request_one("delete_acls", _binding(entry, AclBindingFilter), f"remove {_sentence(entry)}")


def read_acls(
    session: BrokerSession, principal: str | None, resource: Resource, pattern: str
) -> list[AclListing]:
    """The entries of a principal for a resource; `match` finds prefixes and wildcards too."""
    from headrace.cli.librdkafka import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    kind, name = resource
    everything: Any = None  # which the client's types do not allow for
    wanted = AclBindingFilter(
        ResourceType(RESOURCE_NUMBERS[kind]),
        name or everything,
        ResourcePatternType[pattern.upper()],
        principal or everything,
        everything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    found = session.request(
        lambda: session.admin.describe_acls(wanted).result(session.timeout_s), "list the entries"
    )
    return [_listing(binding) for binding in found]


def _binding(entry: AclListing, kind: Any = None) -> Any:
    from headrace.cli.librdkafka import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    return (kind or AclBinding)(
        ResourceType(RESOURCE_NUMBERS[entry.resource]),
        entry.name,
        ResourcePatternType[entry.pattern.upper()],
        entry.user,
        entry.host,
        AclOperation[entry.operation.upper().replace("-", "_")],
        AclPermissionType[entry.permission.upper()],
    )


def _listing(binding: Any) -> AclListing:
    names = {number: name for name, number in RESOURCE_NUMBERS.items()}
    number = binding.restype.value
    return AclListing(
        user=binding.principal,
        permission=binding.permission_type.name.lower(),
        operation=binding.operation.name.lower().replace("_", "-"),
        resource=names.get(number, binding.restype.name.lower()),
        name=binding.name,
        pattern=binding.resource_pattern_type.name.lower(),
        host=binding.host,
    )


def _resources(
    topics: list[str] | None, groups: list[str] | None, ids: list[str] | None, *, cluster: bool
) -> list[Resource]:
    return [
        *(("topic", name) for name in topics or ()),
        *(("group", name) for name in groups or ()),
        *(("transactional-id", name) for name in ids or ()),
        *([("cluster", CLUSTER)] if cluster else []),
    ]


def _principal(user: str) -> str:
    return user if user.startswith("User:") else f"User:{user}"


def _shown_name(entry: AclListing) -> str:
    return f"{entry.name}…" if entry.pattern == "prefixed" else entry.name


def _sentence(entry: AclListing) -> str:
    resource = "the cluster" if entry.resource == "cluster" else f"{entry.resource} {_shown_name(entry)}"
    host = "" if entry.host == "*" else f" from {entry.host}"
    return f"{entry.user}: {entry.permission} {entry.operation} on {resource}{host}"
