"""A gateway as a child process: `python -m headrace.gateway.process LISTEN BROKER`.

A console is one too: `python -m headrace.console LISTEN BROKER STATE`. The process stops
when its standard input ends, which also happens when its parent is killed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

READY: Final = "headrace gateway ready on "
STOP_S: Final = 15


class GatewayDidNotStart(HeadraceError):
    """The gateway's process exited before it was ready."""


class GatewayProcess:
    """A gateway in its own process, from `__enter__` to `__exit__`; `module` is what the process runs."""

    def __init__(
        self, listen: str, broker: str, *more: str, module: str = "headrace.gateway.process"
    ) -> None:
        self._command = [sys.executable, "-m", module, listen, broker, *more]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is for the parent
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(READY):
            code = self._stop()
            raise GatewayDidNotStart(f"the gateway exited with code {code}; its error output has the reason")
        self.url = line.removeprefix(READY).strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> int:
        assert self._process is not None
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                return process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()


async def _serve(listen: str, broker: str, more_routes: Sequence[Any]) -> None:
    from headrace.gateway.options import GatewayOptions, read_listener
    from headrace.gateway.server import GatewayServer

    host, port = read_listener(listen, "--http")
    server = GatewayServer(GatewayOptions(broker=broker, host=host, port=port), more_routes)
    await server.start()
    sys.stdout.write(f"{READY}{server.url}\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def read_input() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            ended.set()

    loop.add_reader(sys.stdin.fileno(), read_input)
    await ended.wait()
    await server.close()


def main(listen: str, broker: str, more_routes: Sequence[Any] = ()) -> int:
    """Run a gateway until standard input ends; returns the exit code."""
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(listen, broker, more_routes))
    except HeadraceError as fault:
        sys.stderr.write(f"headrace gateway: {fault}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
