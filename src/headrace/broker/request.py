"""The context of a request: what its handler needs besides the body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.scheduling import TimeSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """API, version and client of a request, and its time slice."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    time_slice: TimeSlice
    """How long the request may run before it has to pause."""
