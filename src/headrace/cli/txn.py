"""`headrace txn`: lists and describes transactions, and aborts hanging ones."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import RequestFailed, cell_text, confirm, note, print_json, print_line, print_table
from headrace.cli.session import connect
from headrace.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli.session import BrokerSession
    from headrace.client.transactions import Transaction

commands = typer.Typer(no_args_is_help=True, help="List and describe transactions, and abort hanging ones.")

TransactionalId = Annotated[
    str, typer.Argument(metavar="ID", help="Transactional id of the producer.", show_default=False)
]

HEADINGS: Final = ("transactional id", "state", "open for", "timeout", "producer", "epoch", "partitions")


@commands.command("list")
def list_(
    only_open: Annotated[
        bool, typer.Option("--open", help="Only producers with an open transaction.")
    ] = False,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """List the transactional ids, and how long their transactions have been open.

    Example: headrace txn list --open
    """
    from headrace.client.transactions import list_transactions

    with connect(broker) as session:
        found = [each for each in list_transactions(session.cluster) if each.started or not only_open]
    if as_json:
        print_json([_fields(transaction) for transaction in found])
    elif not found:
        note("there are no open transactions" if only_open else "there are no transactional ids yet")
    else:
        print_table(HEADINGS, [_row(transaction) for transaction in found])


@commands.command()
def describe(
    transactional_id: TransactionalId, as_json: options.Json = False, broker: options.Broker = None
) -> None:
    """Show a transactional id, and the partitions of its open transaction.

    Example: headrace txn describe billing-1
    """
    from headrace.client.transactions import describe_transaction

    with connect(broker) as session, _suggested(session, transactional_id):
        transaction = describe_transaction(session.cluster, transactional_id)
    if as_json:
        print_json(_fields(transaction))
        return
    for heading, value in zip(HEADINGS, (*_row(transaction)[:-1], _places(transaction)), strict=True):
        print_line(f"{heading + ':':<18}{cell_text(value)}")


@commands.command()
def abort(transactional_id: TransactionalId, yes: options.Yes = False, broker: options.Broker = None) -> None:
    """Abort the open transaction of a producer, and fence the producer.

    Consumers with read_committed do not read past an open transaction. If its producer will not come back,
    abort the transaction: those consumers then skip its records. A producer that is still alive is fenced,
    and must be restarted.

    Example: headrace txn abort billing-1
    """
    from headrace.client.transactions import abort_transaction, require_open

    with connect(broker) as session, _suggested(session, transactional_id):
        open_one = require_open(session.cluster, transactional_id)
        places = len(open_one.partitions)
        confirm(
            f"Abort the transaction that {transactional_id!r} has had open for {_age(open_one)} "
            f"({places} partition{'' if places == 1 else 's'}), and fence its producer?",
            yes=yes,
        )
        abort_transaction(session.cluster, transactional_id)
    print_line(f"aborted the transaction of {transactional_id}")


@contextmanager
def _suggested(session: BrokerSession, transactional_id: str) -> Iterator[None]:
    """Add the most similar transactional id to the error about an unknown one."""
    from headrace.client.transactions import UnknownTransaction, list_transactions

    try:
        yield
    except UnknownTransaction as unknown:
        known = (each.transactional_id for each in list_transactions(session.cluster))
        raise RequestFailed(
            f"{unknown}.{did_you_mean(transactional_id, known)}\n`headrace txn list` shows what there is."
        ) from None


def _fields(transaction: Transaction) -> dict[str, Any]:
    return {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout,
        "started": transaction.started,
        "partitions": _places(transaction),
    }


def _row(transaction: Transaction) -> tuple[object, ...]:
    return (
        transaction.transactional_id,
        transaction.state,
        _age(transaction),
        f"{transaction.timeout.total_seconds():g} s",
        transaction.producer_id,
        transaction.producer_epoch,
        len(transaction.partitions),
    )


def _places(transaction: Transaction) -> list[str]:
    return [f"{topic}/{partition}" for topic, partition in transaction.partitions]


def _age(transaction: Transaction) -> str | None:
    """How long the transaction has been open, to the second."""
    if transaction.started is None:
        return None
    seconds = max(0, int((datetime.now(UTC) - transaction.started).total_seconds()))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return (
        f"{hours} h {minutes:02} min"
        if hours
        else f"{minutes} min {seconds % 60:02} s"
        if minutes
        else f"{seconds} s"
    )
