"""`headrace quota`: set, list and delete the quotas of users and client ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import RequestFailed, confirm, note, print_json, print_line, print_table
from headrace.cli.session import connect
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.session import BrokerSession

commands = typer.Typer(no_args_is_help=True, help="Set, list and delete the quotas of users and client ids.")

PRODUCER, CONSUMER, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
KEYS: Final = (PRODUCER, CONSUMER, REQUEST)
DEFAULT: Final = "(default)"

EntityName = str | None
"""The name of a user or of a client id; None for the default."""
Entity = dict[str, EntityName]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaListing:
    """The quotas of one entity. A name is `(default)` for the default of its kind."""

    user: str | None
    client_id: str | None
    producer_byte_rate: int | None
    consumer_byte_rate: int | None
    request_percentage: float | None


User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Name of the user.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="All users without their own quota.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="NAME", help="Client id.")]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="All client ids without their own quota.")
]


@commands.command("set")
def set_(
    *,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    producer_byte_rate: Annotated[
        int | None, typer.Option("--producer-byte-rate", min=1, help="Bytes per second that may be produced.")
    ] = None,
    consumer_byte_rate: Annotated[
        int | None, typer.Option("--consumer-byte-rate", min=1, help="Bytes per second that may be fetched.")
    ] = None,
    request_percentage: Annotated[
        float | None,
        typer.Option("--request-percentage", min=0.001, help="Percentage of the broker's time for requests."),
    ] = None,
    broker: options.Broker = None,
) -> None:
    """Set quotas of a user, a client id, or a client id of a user. Quotas that are not named stay.

    Example: headrace quota set --user alice --producer-byte-rate 1000000
    """
    entity = _entity(user, client_id, default_user=default_user, default_client_id=default_client_id)
    given = {PRODUCER: producer_byte_rate, CONSUMER: consumer_byte_rate, REQUEST: request_percentage}
    values = {key: float(value) for key, value in given.items() if value is not None}
    if not values:
        raise Misuse(
            "no quota is given: add --producer-byte-rate, --consumer-byte-rate or --request-percentage."
        )
    with connect(broker) as session:
        alter_quotas(session, entity, values)
    print_line(f"set quotas of {_sentence(entity)}")


@commands.command("list")
def list_(as_json: options.Json = False, broker: options.Broker = None) -> None:
    """List all quotas.

    Example: headrace quota list --json
    """
    with connect(broker) as session:
        quotas = read_quotas(session)
    if as_json:
        print_json(quotas)
    elif not quotas:
        note("there are no quotas; `headrace quota set --user NAME --producer-byte-rate N` sets one")
    else:
        rows = [
            (
                quota.user or "",
                quota.client_id or "",
                quota.producer_byte_rate,
                quota.consumer_byte_rate,
                quota.request_percentage,
            )
            for quota in quotas
        ]
        print_table(["user", "client id", "producer bytes/s", "consumer bytes/s", "request %"], rows)


@commands.command()
def delete(
    *,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    yes: options.Yes = False,
    broker: options.Broker = None,
) -> None:
    """Delete all quotas of a user, a client id, or a client id of a user.

    Example: headrace quota delete --user alice --yes
    """
    entity = _entity(user, client_id, default_user=default_user, default_client_id=default_client_id)
    confirm(f"Delete the quotas of {_sentence(entity)}?", yes=yes)
    with connect(broker) as session:
        alter_quotas(session, entity, dict.fromkeys(KEYS))
    print_line(f"deleted quotas of {_sentence(entity)}")


def alter_quotas(session: BrokerSession, entity: Entity, values: Mapping[str, float | None]) -> None:
    """Set quotas of an entity; those whose value is None are deleted."""
    from kio.schema.alter_client_quotas.v1.request import (
        AlterClientQuotasRequest,
        EntityData,
        EntryData,
        OpData,
    )
    from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
    from kio.static.primitive import f64

    request = AlterClientQuotasRequest(
        entries=(
            EntryData(
                entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()),
                ops=tuple(
                    OpData(key=key, value=f64(value or 0.0), remove=value is None)
                    for key, value in values.items()
                ),
            ),
        ),
        validate_only=False,
    )
    response = session.cluster.any().request(request, AlterClientQuotasResponse)
    for entry in response.entries:
        _check(entry, f"set the quotas of {_sentence(entity)}")


def read_quotas(session: BrokerSession) -> list[QuotaListing]:
    """All quotas of users and client ids."""
    from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
    from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse

    request = DescribeClientQuotasRequest(components=(), strict=False)
    response = session.cluster.any().request(request, DescribeClientQuotasResponse)
    _check(response, "list the quotas")
    listings = [_listing(entry) for entry in response.entries or ()]
    return sorted(listings, key=lambda quota: (quota.user or "", quota.client_id or ""))


def _listing(entry: Any) -> QuotaListing:
    names = {part.entity_type: part.entity_name or DEFAULT for part in entry.entity}
    values = {value.key: value.value for value in entry.values}
    return QuotaListing(
        user=names.get("user"),
        client_id=names.get("client-id"),
        producer_byte_rate=_whole(values.get(PRODUCER)),
        consumer_byte_rate=_whole(values.get(CONSUMER)),
        request_percentage=values.get(REQUEST),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _check(result: Any, act: str) -> None:
    if result.error_code:
        reason = result.error_message or "without a reason"
        raise RequestFailed(
            f"the broker did not {act}: {reason} ({result.error_code.name.upper()})",
            code=int(result.error_code),
        )


def _entity(
    user: str | None, client_id: str | None, *, default_user: bool, default_client_id: bool
) -> Entity:
    entity: Entity = {}
    for kind, name, is_default in (("user", user, default_user), ("client-id", client_id, default_client_id)):
        if name is not None and is_default:
            raise Misuse(f"--{kind} and --default-{kind} exclude each other.")
        if name is not None or is_default:
            entity[kind] = name
    if not entity:
        raise Misuse("no entity is named: use --user, --default-user, --client-id or --default-client-id.")
    return entity


def _sentence(entity: Entity) -> str:
    return " with ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in entity.items())
