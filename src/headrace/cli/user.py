"""`headrace user`: create, list and delete the users that authenticate with SCRAM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import RequestFailed, confirm, note, print_json, print_line, print_table
from headrace.cli.session import connect
from headrace.password import VARIABLE, read_new_password

if TYPE_CHECKING:
    from headrace.cli.session import BrokerSession

commands = typer.Typer(no_args_is_help=True, help="Create, list and delete users.")

ITERATIONS: Final = 8192

User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]


class UnknownUser(RequestFailed):
    """The user does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserListing:
    """One user, with the SCRAM mechanisms that it can use."""

    user: str
    mechanisms: tuple[str, ...]


@commands.command()
def create(
    user: User,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file", metavar="FILE", help=f"File with the password (default: {VARIABLE}, or ask)."
        ),
    ] = None,
    broker: options.Broker = None,
) -> None:
    """Create a user, or set a new password.

    Example: headrace user create alice --password-file alice.password
    """
    password = read_new_password(user, password_file)
    with connect(broker) as session:
        set_password(session, user, password)
    print_line(f"created user {user}")


@commands.command("list")
def list_(as_json: options.Json = False, broker: options.Broker = None) -> None:
    """List the users.

    Example: headrace user list --json
    """
    with connect(broker) as session:
        users = read_users(session)
    if as_json:
        print_json(users)
    elif not users:
        note("there are no users; `headrace user create NAME` creates one")
    else:
        print_table(["user", "mechanisms"], [(user.user, ", ".join(user.mechanisms)) for user in users])


@commands.command()
def delete(user: User, yes: options.Yes = False, broker: options.Broker = None) -> None:
    """Delete a user. Connections that it has open stay until they end.

    Example: headrace user delete alice --yes
    """
    with connect(broker) as session:
        known = next((listing for listing in read_users(session) if listing.user == user), None)
        if known is None:
            raise UnknownUser(f"user {user!r} does not exist.\n`headrace user list` shows who there is.")
        confirm(f"Delete user {user}?", yes=yes)
        delete_user(session, known)
    print_line(f"deleted user {user}")


def set_password(session: BrokerSession, user: str, password: str) -> None:
    """Let a user authenticate with this password, with every SCRAM mechanism."""
    from headrace.cli.librdkafka import ScramCredentialInfo, UserScramCredentialUpsertion

    for mechanism in _mechanisms():
        info = ScramCredentialInfo(mechanism, ITERATIONS)
        _alter(session, UserScramCredentialUpsertion(user, info, password.encode()), f"create user {user!r}")


def _alter(session: BrokerSession, change: Any, act: str) -> None:
    """Change one credential: Kafka accepts only one change of a user in a request."""
    session.request_one("alter_user_scram_credentials", change, act)


def read_users(session: BrokerSession) -> list[UserListing]:
    """All users by name."""

    def call() -> Any:
        answer: Any = session.admin.describe_user_scram_credentials()
        return answer.result(session.timeout_s)

    found = session.request(call, "list the users")
    return [
        UserListing(
            user=name,
            mechanisms=tuple(
                sorted(info.mechanism.name.replace("_", "-") for info in found[name].scram_credential_infos)
            ),
        )
        for name in sorted(found)
    ]


def delete_user(session: BrokerSession, user: UserListing) -> None:
    """Delete every credential of a user."""
    from headrace.cli.librdkafka import ScramMechanism, UserScramCredentialDeletion

    for name in user.mechanisms:
        mechanism = ScramMechanism[name.replace("-", "_")]
        _alter(session, UserScramCredentialDeletion(user.user, mechanism), f"delete user {user.user!r}")


def _mechanisms() -> tuple[Any, ...]:
    from headrace.cli.librdkafka import ScramMechanism

    return (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
