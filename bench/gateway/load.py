"""`python -m bench.gateway.load JOB`: single-event POSTs, as fast as possible or at a rate.

Requests are written and responses parsed by hand: a full HTTP client would need more CPU time than the
servers, and share their cores.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

BODY = b'{"product":"tea","amount":12.5,"customer":"c-1234","note":"%s"}' % (b"x" * 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many requests, over how many connections, and how fast."""

    port: int
    topic: str
    requests: int
    connections: int = 64
    rate: int = 0
    """Requests a second of all connections together; 0 for as fast as possible."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Connection(asyncio.Protocol):
    """One connection that posts an event after the other; latencies count from the time that was planned."""

    def __init__(self, load: Load, number: int, begin: float, latencies_ms: list[float]) -> None:
        head = (
            f"POST /topics/{load.topic} HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        )
        self._request = head.encode() + BODY
        self._left = load.requests // load.connections
        self._interval = load.connections / load.rate if load.rate else 0.0
        self._due = begin + (self._interval * number / load.connections)
        self._latencies_ms = latencies_ms
        self._answer = b""
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._plan()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        end = self._answer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._answer[:end].lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self._answer) < end + 4 + length:
            return
        if b" 200 " not in head[:16]:
            self.done.set_exception(RuntimeError(self._answer[:500].decode(errors="replace")))
            self._transport.close()
            return
        self._answer = b""
        self._latencies_ms.append((self._loop.time() - self._due) * 1000)
        self._due += self._interval
        self._plan()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))

    def _plan(self) -> None:
        if not self._left:
            self.done.set_result(None)
            self._transport.close()
        elif self._interval and self._due > self._loop.time():
            self._left -= 1
            self._loop.call_at(self._due, self._transport.write, self._request)
        else:
            self._left -= 1
            if not self._interval:
                self._due = self._loop.time()
            self._transport.write(self._request)


async def run(load: Load) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    latencies_ms: list[float] = []
    begin = loop.time() + 0.1
    connections = [Connection(load, number, begin, latencies_ms) for number in range(load.connections)]
    started = time.perf_counter()
    for connection in connections:
        await loop.create_connection(lambda made=connection: made, "127.0.0.1", load.port)
    await asyncio.gather(*(connection.done for connection in connections))
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "latencies_ms": sorted(latencies_ms), "client_cpu_s": time.process_time()}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(Load(**json.loads(sys.argv[1]))))))
