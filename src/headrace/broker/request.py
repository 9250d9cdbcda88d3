"""What a handler knows of the request it serves, besides its body."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The version that was asked for, and who asks."""

    api_key: int
    version: int
    client_id: str
    client_host: str
