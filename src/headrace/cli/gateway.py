"""`headrace gateway`: the HTTP gateway."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads annotations when it runs
from typing import Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.session import broker_address


def gateway(
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="[HOST:]PORT", help="Address to listen on; port 0 for any.")
    ] = "127.0.0.1:8080",
    authentication: options.Authentication = False,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca",
            metavar="FILE",
            help="Refuse connections without a certificate that this authority signed.",
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="Allow web pages of this origin (CORS); repeatable."),
    ] = None,
    host: options.Hosts = None,
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Name in transactional ids (default: the address)."),
    ] = "",
    max_body_bytes: Annotated[
        int,
        typer.Option("--max-body-bytes", metavar="BYTES", min=1, help="Largest body of a request."),
    ] = 8 << 20,
    max_in_flight_bytes: Annotated[
        int,
        typer.Option(
            "--max-in-flight-bytes",
            metavar="BYTES",
            min=1,
            help="Bodies that are read or stored at a time.",
        ),
    ] = 256 << 20,
    broker: options.Broker = None,
) -> None:
    """Serve topics, change feeds and views over HTTP, until Ctrl-C.

    Events are stored by POST /topics/TOPIC, OpenTelemetry data by /v1/logs, /v1/metrics and /v1/traces.
    /changes/VIEW and /topics/TOPIC/records are server-sent events and WebSockets, /views/VIEW answers bounded
    queries, and /docs describes all of it. An address that other machines can reach needs --authentication
    and --tls-certificate.

    Example: headrace gateway --listen 127.0.0.1:8080
    """
    from headrace.gateway.options import GatewayOptions, read_listener
    from headrace.gateway.server import run_gateway

    address, port = read_listener(listen)
    run_gateway(
        GatewayOptions(
            broker=str(broker_address(broker)),
            host=address,
            port=port,
            authentication=authentication,
            certificate=tls_certificate,
            private_key=tls_key,
            client_ca=tls_client_ca,
            origins=tuple(origin or ()),
            hosts=tuple(host or ()),
            name=name,
            max_body_bytes=max_body_bytes,
            max_in_flight_bytes=max_in_flight_bytes,
        )
    )
