"""The command `headrace broker`: runs a broker in the foreground until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import errno
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.config import BrokerConfig, Flush
from headrace.broker.init import main as init
from headrace.broker.listeners import Protocol, parse_listeners
from headrace.broker.security.sasl import SCRAM
from headrace.broker.security.settings import MECHANISMS, ClientAuth, OAuthSettings, SecuritySettings
from headrace.errors import HeadraceError
from headrace.logs import FORMATS, LEVELS, configure_logging
from headrace.metrics.address import MetricsAddress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.broker import Broker
    from headrace.broker.listeners import Endpoint, Listener

DEFAULT_LISTENER: Final = "127.0.0.1:9092"
GATEWAY_RESTART_S: Final = 1.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace broker",
        description="Start a broker that speaks the Apache Kafka protocol, and run it until Ctrl-C.",
        epilog="example: headrace broker --listen 127.0.0.1:9092 --data ./data --flush always; "
        "`headrace broker init --data DIR --user NAME` creates the first user; "
        "`headrace broker recover --archive URL --data DIR` makes a data folder from an archive",
    )
    parser.add_argument(
        "--listen",
        action="append",
        metavar="[PROTOCOL://]HOST:PORT",
        help="address to listen on (default: 127.0.0.1:9092); port 0 for a free one; "
        "PLAINTEXT (the default), SSL, SASL_PLAINTEXT or SASL_SSL; repeatable",
    )
    parser.add_argument(
        "--advertise",
        action="append",
        metavar="[PROTOCOL://]HOST:PORT",
        help="address that clients connect to for the listener of that protocol (default: the one it "
        "listens on); repeatable",
    )
    parser.add_argument(
        "--data", default="data", type=Path, metavar="DIR", help="the data folder (default: data)"
    )
    parser.add_argument(
        "--node-id", default=1, type=int, metavar="N", help="number of the broker for clients (default: 1)"
    )
    parser.add_argument(
        "--flush",
        default="os",
        choices=[policy.value for policy in Flush],
        help="when records reach the disk itself: left to the operating system (default), at an interval, "
        "or always before they are acknowledged",
    )
    parser.add_argument(
        "--flush-interval-ms", default=1000, type=int, metavar="MS", help="for --flush interval"
    )
    parser.add_argument(
        "--partitions", default=1, type=int, help="partitions of a topic made without a number"
    )
    parser.add_argument("--no-auto-create", action="store_true", help="refuse topics that were not created")
    parser.add_argument(
        "--maintenance-interval-ms",
        default=5000,
        type=int,
        metavar="MS",
        help="how often retention and compaction look",
    )
    parser.add_argument(
        "--memory-topics-bytes",
        default=2**30,
        type=int,
        metavar="BYTES",
        help="what all topics in memory may hold together",
    )
    parser.add_argument(
        "--max-partitions", default=10_000, type=int, metavar="N", help="partitions of all topics together"
    )
    parser.add_argument(
        "--max-connections", default=10_000, type=int, metavar="N", help="connections served at once"
    )
    parser.add_argument(
        "--max-connections-per-ip",
        default=2_000,
        type=int,
        metavar="N",
        help="connections of one address served at once",
    )
    parser.add_argument(
        "--connection-memory-bytes",
        default=256 * 2**20,
        type=int,
        metavar="BYTES",
        help="memory for requests being read and responses waiting to be sent, of all connections",
    )
    parser.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        help="also run an HTTP gateway on this loopback address, in a process of its own",
    )
    _add_archive_options(parser)
    _add_security_options(parser)
    _add_monitoring_options(parser)
    return parser


def _add_archive_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archive",
        metavar="URL",
        help="object store for topics with remote.storage.enable=true: s3://BUCKET/PREFIX or file:///FOLDER; "
        "credentials and endpoint by the AWS_... variables",
    )
    parser.add_argument(
        "--archive-cache-bytes",
        default=2**30,
        type=int,
        metavar="BYTES",
        help="disk space for archived records that are being read",
    )
    parser.add_argument(
        "--archive-interval-ms",
        default=5000,
        type=int,
        metavar="MS",
        help="how often closed segments are copied to the archive",
    )


def _add_monitoring_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve /metrics, /health/live and /health/ready on this address (default: not served; "
        "the host is 127.0.0.1)",
    )
    parser.add_argument(
        "--metrics-allow-remote",
        action="store_true",
        help="allow --metrics on an address that other machines reach, without authentication",
    )
    parser.add_argument(
        "--client-metrics-interval-ms",
        default=60_000,
        type=int,
        metavar="MS",
        help="how often clients push their own metrics, which /metrics shows (default: 60000)",
    )
    parser.add_argument(
        "--slow-request-ms",
        type=int,
        metavar="MS",
        help="log requests that take longer, without the time that a long poll or a rebalance waits "
        "(default: none)",
    )
    parser.add_argument("--log-level", default="warning", choices=LEVELS, help="log from this level on")
    parser.add_argument(
        "--log-format", default="text", choices=FORMATS, help="format of the log on standard error"
    )


def _add_security_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sasl-mechanism",
        action="append",
        choices=MECHANISMS,
        help="mechanism of SASL listeners (default: SCRAM-SHA-256 and SCRAM-SHA-512); PLAIN and "
        "OAUTHBEARER are offered only with TLS or on loopback; repeatable",
    )
    parser.add_argument(
        "--oauth-jwks",
        metavar="FILE_OR_URL",
        help="public keys of the identity provider, for OAUTHBEARER: a file, or an https URL",
    )
    parser.add_argument(
        "--oauth-audience", metavar="NAME", help="audience that tokens must be meant for, for OAUTHBEARER"
    )
    parser.add_argument("--oauth-issuer", metavar="NAME", help="issuer that tokens must have")
    parser.add_argument(
        "--oauth-user-claim", default="sub", metavar="CLAIM", help="claim that is the name of the user"
    )
    parser.add_argument(
        "--sasl-session-ms",
        default=0,
        type=int,
        metavar="MS",
        help="after this time clients must authenticate again; 0 for never",
    )
    parser.add_argument(
        "--super-user",
        action="append",
        metavar="User:NAME",
        help="principal that may do everything, like the users of `headrace broker init`; repeatable",
    )
    parser.add_argument(
        "--tls-certificate",
        type=Path,
        metavar="FILE",
        help="certificate chain of SSL and SASL_SSL listeners, as PEM",
    )
    parser.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="private key, as PEM (default: in --tls-certificate)"
    )
    parser.add_argument(
        "--tls-key-password-file",
        type=Path,
        metavar="FILE",
        help="file whose first line is the password of the private key, if that is encrypted",
    )
    parser.add_argument(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="authorities that sign certificates of clients, as PEM",
    )
    parser.add_argument(
        "--tls-client-auth",
        default="none",
        choices=[each.value for each in ClientAuth],
        help="whether clients of SSL listeners must present certificates",
    )
    parser.add_argument(
        "--tls-principal-rules",
        default="DEFAULT",
        metavar="RULES",
        help="how the name in a client's certificate becomes a user, in the syntax of Kafka's "
        "ssl.principal.mapping.rules",
    )


def _security(options: argparse.Namespace) -> SecuritySettings:
    oauth = None
    if options.oauth_jwks and options.oauth_audience:
        oauth = OAuthSettings(
            jwks=options.oauth_jwks,
            audience=options.oauth_audience,
            issuer=options.oauth_issuer,
            user_claim=options.oauth_user_claim,
        )
    return SecuritySettings(
        oauth=oauth,
        sasl_mechanisms=tuple(options.sasl_mechanism or SCRAM),
        session_lifetime_ms=options.sasl_session_ms,
        super_users=frozenset(options.super_user or ()),
        certificate=options.tls_certificate,
        private_key=options.tls_key,
        private_key_password=options.tls_key_password_file,
        client_ca=options.tls_client_ca,
        client_auth=ClientAuth(options.tls_client_auth),
        principal_mapping_rules=options.tls_principal_rules,
    )


def _metrics(options: argparse.Namespace) -> MetricsAddress | None:
    if options.metrics is None:
        return None
    return MetricsAddress.parse(options.metrics, allow_remote=options.metrics_allow_remote)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["init"]:
        return init(given[1:])
    if given[:1] == ["recover"]:
        from headrace.broker.archive_recovery import main as recover

        return recover(given[1:])
    options = _parser().parse_args(given)
    options.listen = options.listen or [DEFAULT_LISTENER]
    configure_logging(options.log_level, options.log_format)
    try:
        config = BrokerConfig(
            data=options.data,
            listeners=parse_listeners(options.listen, options.advertise or ()),
            security=_security(options),
            node_id=options.node_id,
            flush=Flush(options.flush),
            flush_interval_ms=options.flush_interval_ms,
            default_partitions=options.partitions,
            auto_create_topics=not options.no_auto_create,
            maintenance_interval_ms=options.maintenance_interval_ms,
            memory_topics_bytes=options.memory_topics_bytes,
            max_partitions=options.max_partitions,
            max_connections=options.max_connections,
            max_connections_per_ip=options.max_connections_per_ip,
            connection_memory_bytes=options.connection_memory_bytes,
            archive=options.archive,
            archive_cache_bytes=options.archive_cache_bytes,
            archive_interval_ms=options.archive_interval_ms,
            slow_request_ms=options.slow_request_ms,
            metrics=_metrics(options),
            client_metrics_interval_ms=options.client_metrics_interval_ms,
        )
        _raise_file_limit()
        return _run(config, options.http)
    except HeadraceError as fault:
        sys.stderr.write(f"headrace broker: {fault}\n")
        return 1
    except OSError as fault:
        sys.stderr.write(f"headrace broker: {_explain(fault, options)}\n")
        return 1


def _explain(fault: OSError, options: argparse.Namespace) -> str:
    addresses = ", ".join(options.listen)
    if fault.errno == errno.EADDRINUSE:
        return (
            f"{addresses} is in use by another process: stop it, or choose another port "
            "(--listen HOST:PORT, where port 0 takes any free one)"
        )
    if fault.filename is not None:
        return (
            f"the data folder {options.data} cannot be used: {fault.filename}: {fault.strerror}; "
            "choose another one (--data DIR)"
        )
    return f"cannot listen on {addresses}: {fault.strerror}; choose another address (--listen HOST:PORT)"


def _run(config: BrokerConfig, http: str | None) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, http))


async def _serve(config: BrokerConfig, http: str | None) -> int:
    from headrace.broker.broker import Broker

    if config.metrics is None:
        return await _run_until_stopped(await Broker.start(config), http)
    from headrace.broker.metrics import BrokerMetricsSource
    from headrace.metrics.server import MetricsServer

    source = BrokerMetricsSource(asyncio.get_running_loop())
    with MetricsServer(config.metrics, source) as server:
        source.broker = await Broker.start(config)
        return await _run_until_stopped(source.broker, http, server.address)


async def _run_until_stopped(broker: Broker, http: str | None, metrics: MetricsAddress | None = None) -> int:
    from headrace.broker.scheduling import freeze_growth

    freeze_growth()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        broker.loop.add_signal_handler(number, stop.set)
    sys.stdout.write(f"headrace broker ready on {', '.join(map(_shown, broker.endpoints))}\n")
    if metrics is not None:
        sys.stdout.write(f"headrace broker metrics on http://{metrics}/metrics\n")
    sys.stdout.flush()
    gateway = None if http is None else broker.loop.create_task(_run_gateway(http, broker.endpoints))
    stopped = broker.loop.create_task(stop.wait())
    ends: list[asyncio.Future[Any]] = [stopped, broker.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if broker.failed.done():
        sys.stderr.write(f"headrace broker: stopped, the disk failed: {broker.failed.exception()}\n")
        return 1
    if gateway is not None:
        gateway.cancel()
        await asyncio.gather(gateway, return_exceptions=True)
    await broker.stop()
    return 0


async def _run_gateway(http: str, endpoints: Sequence[tuple[Listener, Endpoint]]) -> None:
    """Run an HTTP gateway as a child process, again if it exits: the broker itself stays small."""
    address = next(
        (str(endpoint) for listener, endpoint in endpoints if listener.protocol is Protocol.PLAINTEXT), None
    )
    if address is None:
        sys.stderr.write(
            "headrace broker: --http needs a PLAINTEXT listener; for a secured broker run `headrace gateway "
            "--authentication` with a security profile\n"
        )
        return
    command = (sys.executable, "-m", "headrace.gateway.process", http, address)
    while True:
        # The gateway stops when its standard input ends, also if this process is killed.
        child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        try:
            code = await child.wait()
        finally:
            assert child.stdin is not None
            child.stdin.close()
            await child.wait()
        sys.stderr.write(f"headrace broker: the gateway exited with code {code}; it is started again\n")
        await asyncio.sleep(GATEWAY_RESTART_S)


def _shown(bound: tuple[Listener, Endpoint]) -> str:
    listener, endpoint = bound
    return (
        str(endpoint)
        if listener.protocol is Protocol.PLAINTEXT
        else f"{listener.protocol.value}://{endpoint}"
    )


def _raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: every connection and active segment needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
