"""The command `headrace broker`: a broker in the foreground, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.broker.config import BrokerConfig, Flush
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace broker",
        description="Start a broker that speaks the Apache Kafka protocol, and run it until Ctrl-C.",
        epilog="example: headrace broker --listen 127.0.0.1:9092 --data ./data --flush always",
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="loopback address; port 0 for a free one",
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
    parser.add_argument("--log-level", default="warning", choices=["debug", "info", "warning", "error"])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker; gives the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit():
        parser.error(f"--listen {options.listen}: write HOST:PORT, for example 127.0.0.1:9092")
    try:
        config = BrokerConfig(
            data=options.data,
            host=host.strip("[]"),
            port=int(port),
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
        )
        _raise_file_limit()
        return _run(config)
    except HeadraceError as fault:
        sys.stderr.write(f"headrace broker: {fault}\n")
        return 1
    except OSError as fault:
        sys.stderr.write(f"headrace broker: {_explain(fault, options)}\n")
        return 1


def _explain(fault: OSError, options: argparse.Namespace) -> str:
    if fault.errno == errno.EADDRINUSE:
        return (
            f"{options.listen} is in use by another process: stop it, or choose another port "
            "(--listen HOST:PORT, where port 0 takes any free one)"
        )
    if fault.filename is not None:
        return (
            f"the data folder {options.data} cannot be used: {fault.filename}: {fault.strerror}; "
            "choose another one (--data DIR)"
        )
    return f"cannot listen on {options.listen}: {fault.strerror}; choose another address (--listen HOST:PORT)"


def _run(config: BrokerConfig) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


async def _serve(config: BrokerConfig) -> int:
    from headrace.broker.broker import Broker
    from headrace.broker.garbage_collection import freeze_growth

    broker = await Broker.start(config)
    freeze_growth()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        broker.loop.add_signal_handler(number, stop.set)
    sys.stdout.write(f"headrace broker ready on {broker.host}:{broker.port}\n")
    sys.stdout.flush()
    stopped = broker.loop.create_task(stop.wait())
    ends: list[asyncio.Future[Any]] = [stopped, broker.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if broker.failed.done():
        sys.stderr.write(f"headrace broker: stopped, the disk failed: {broker.failed.exception()}\n")
        return 1
    await broker.stop()
    return 0


def _raise_file_limit() -> None:
    """Allow as many open files as the system does: every connection and every active segment is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
