"""Options and arguments that several commands share, and shell completion for topics and groups."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.cli.session import BrokerSession

PATIENCE_S: Final = 1.0
"""Shell completion must not block for longer."""


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that start with the typed text."""
    from headrace.cli.topic_admin import topic_names

    return _beginning_with(incomplete, topic_names, ctx)


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups that start with the typed text."""
    from headrace.cli.group import group_names

    return _beginning_with(incomplete, group_names, ctx)


def complete_view(ctx: typer.Context, incomplete: str) -> list[str]:
    """Views that start with the typed text."""

    def view_names(session: BrokerSession) -> list[str]:
        from headrace.feeds.catalog import read_views

        return list(read_views(session.cluster))

    return _beginning_with(incomplete, view_names, ctx)


def _beginning_with(
    typed: str, read_names: Callable[[BrokerSession], list[str]], ctx: typer.Context
) -> list[str]:
    from headrace.cli.session import connect

    try:
        with connect(ctx.params.get("broker"), timeout_s=PATIENCE_S) as session:
            return [name for name in read_names(session) if name.startswith(typed)]
    except HeadraceError:
        return []


Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="HOST:PORT",
        help="Address of the broker, or several, comma-separated "
        "(default: HEADRACE_BROKER, the nearest headrace.toml, or 127.0.0.1:9092).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Serve /metrics, /health/live and /health/ready on this address (default: not served).",
    ),
]
MetricsAllowRemote = Annotated[
    bool,
    typer.Option(
        "--metrics-allow-remote",
        help="Allow --metrics on an address that other machines reach, without authentication.",
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level", metavar="LEVEL", help="Log from this level on: debug, info, warning or error."
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="FORMAT", help="Format of the log on standard error: text or json."),
]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the consumer group.", autocompletion=complete_group)
]

Authentication = Annotated[
    bool,
    typer.Option(
        "--authentication",
        help="Require credentials of users of the broker, and log in to the broker with them.",
    ),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option("--tls-certificate", metavar="FILE", help="Certificate chain of this server, as PEM."),
]
TlsKey = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="Private key, as PEM (default: in the certificate)."),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME", help="Accept this name in the Host header; repeatable."),
]
