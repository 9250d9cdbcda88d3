"""`headrace console`: the web console."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads annotations when it runs
from typing import Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.session import broker_address


def console(
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="[HOST:]PORT", help="Address to listen on; port 0 for any.")
    ] = "127.0.0.1:8088",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse everything that changes something.")
    ] = False,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="State directory of jobs here (default: HEADRACE_STATE, headrace.toml, or .headrace).",
        ),
    ] = None,
    program: Annotated[
        list[Path] | None,
        typer.Option(
            "--program",
            metavar="FILE",
            help="Python file that defines aggregates, to show their state; repeatable.",
        ),
    ] = None,
    authentication: options.Authentication = False,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    host: options.Hosts = None,
    broker: options.Broker = None,
) -> None:
    """Serve a web page for topics, groups, queues, jobs, views and brokers, until Ctrl-C.

    It works with Headrace's broker and with Apache Kafka. An address that other machines can reach needs
    --authentication and --tls-certificate: users then log in as users of the broker, with their ACLs.

    Example: headrace console --listen 127.0.0.1:8088
    """
    from headrace.console.app import Console, ConsoleOptions
    from headrace.gateway.options import GatewayOptions, read_listener
    from headrace.gateway.server import run_gateway
    from headrace.settings import Settings

    address, port = read_listener(listen)
    gateway = GatewayOptions(
        broker=str(broker_address(broker)),
        host=address,
        port=port,
        authentication=authentication,
        certificate=tls_certificate,
        private_key=tls_key,
        hosts=tuple(host or ()),
        read_only=read_only,
    )
    settings = Settings.read()
    shown = Console(
        ConsoleOptions(
            read_only=read_only, state=settings.state(state).absolute(), programs=tuple(program or ())
        )
    )
    run_gateway(gateway, shown.routes(), announcement="headrace console ready on ")
