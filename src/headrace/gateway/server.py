"""Runs a gateway: in an event loop, in a thread, or as a process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import uvicorn

from headrace.errors import Misuse
from headrace.gateway.app import Gateway
from headrace.gateway.http_protocol import WebSocketProtocol, limited_protocol
from headrace.gateway.process import READY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.gateway.options import GatewayOptions

KEEP_ALIVE_S: Final = 75
"""Longer than the usual interval of exporters, which otherwise lose a request now and then."""
STOP_S: Final = 5
BACKLOG: Final = 2_048


class GatewayServer:
    """A gateway in the current event loop."""

    def __init__(self, options: GatewayOptions, more_routes: Sequence[Any] = ()) -> None:
        self.options = options
        self._more_routes = more_routes
        self._gateway: Gateway | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Start to listen; returns the port, which the system chooses if that of the options is 0."""
        listener = _listen(self.options)
        host, port = listener.getsockname()[:2]
        options = replace(self.options, port=port, name=self.options.name or f"{host}-{port}")
        try:
            self._gateway = Gateway(options, self._more_routes)
            self._server = _Server(_config(self._gateway, options))
        except BaseException:
            listener.close()
            raise
        self._task = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0)
        return int(port)

    @property
    def url(self) -> str:
        """The address of the gateway."""
        assert self._gateway is not None
        options = self._gateway.options
        host = f"[{options.host}]" if ":" in options.host else options.host
        return f"{'http' if options.certificate is None else 'https'}://{host}:{options.port}"

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return 0 if self._gateway is None else self._gateway.streams.clients

    @property
    def connections(self) -> int:
        """The number of connections."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def close(self) -> None:
        """Finish requests, end streams, and disconnect."""
        if self._gateway is None or self._server is None or self._task is None:
            return
        self._server.should_exit = True
        await self._gateway.streams.close()
        await self._task
        await self._gateway.close()


class GatewayThread:
    """A gateway in a thread of its own, from `__enter__` to `__exit__`."""

    def __init__(self, options: GatewayOptions, more_routes: Sequence[Any] = ()) -> None:
        import uvloop

        self.server = GatewayServer(options, more_routes)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gateway", daemon=True)

    @property
    def url(self) -> str:
        """The address of the gateway."""
        return self.server.url

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._do(self.server.start())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self.server.close())
        self._stop()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._do(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def run_gateway(
    options: GatewayOptions, more_routes: Sequence[Any] = (), *, announcement: str = READY
) -> None:
    """Run a gateway in this process until SIGINT or SIGTERM; `announcement` and its URL are printed."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(options, more_routes, announcement))


async def _run(options: GatewayOptions, more_routes: Sequence[Any], announcement: str) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = GatewayServer(options, more_routes)
    await server.start()
    sys.stdout.write(f"{announcement}{server.url}\n")
    sys.stdout.flush()
    await stopped.wait()
    await server.close()


class _Server(uvicorn.Server):
    """Uvicorn's server without its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(gateway: Gateway, options: GatewayOptions) -> uvicorn.Config:
    secured: dict[str, Any] = {}
    if options.certificate is not None:
        secured = {"ssl_certfile": options.certificate, "ssl_keyfile": options.private_key}
        if options.client_ca is not None:
            secured |= {"ssl_ca_certs": str(options.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    config = uvicorn.Config(
        gateway,
        http=limited_protocol(options),
        ws=WebSocketProtocol,
        ws_max_size=64 << 10,  # clients send nothing
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        limit_concurrency=options.max_connections,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        backlog=BACKLOG,
        **secured,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as fault:
        raise Misuse(f"the certificate {options.certificate} cannot be loaded: {fault}.") from fault
    return config


def _listen(options: GatewayOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        # Without SO_REUSEPORT: two gateways on one port are a mistake.
        return socket.create_server((options.host, options.port), family=family, backlog=BACKLOG)
    except OSError as fault:
        raise Misuse(
            f"the gateway cannot listen on {options.host}:{options.port}: {fault.strerror}. "
            "Choose another address with --listen HOST:PORT."
        ) from fault
