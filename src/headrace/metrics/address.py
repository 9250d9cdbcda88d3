"""Where the page of metrics is served: on loopback, unless other addresses are allowed explicitly.

The page has no authentication. It shows names of topics, groups, jobs and clients.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import Misuse

LOOPBACK: Final = "127.0.0.1"
_ADDRESS: Final = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\[\]]+):)?(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAddress:
    """The host and the port of the page; port 0 for any free one."""

    host: str = LOOPBACK
    port: int

    @staticmethod
    def parse(text: str, *, allow_remote: bool = False) -> MetricsAddress:
        """The address in `PORT` or `HOST:PORT`; an address that others can reach must be allowed."""
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65535:
            raise Misuse(
                f"{text!r} is not an address for metrics: write a port such as 9404, or 127.0.0.1:9404."
            )
        host = (match["host"] or LOOPBACK).strip("[]")
        if not allow_remote and not _is_loopback(host):
            raise Misuse(
                f"metrics on {host} would be readable by everybody who reaches this machine, because the "
                "page has no authentication: use a loopback address, or allow it with "
                "--metrics-allow-remote (HEADRACE_METRICS_ALLOW_REMOTE=true)."
            )
        return MetricsAddress(host=host, port=int(match["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
