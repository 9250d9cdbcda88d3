"""What a handler knows of the request it serves, besides its body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.turns import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The version that was asked for, and who asks."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    turn: Turn
    """The time that the request may take before it must pause."""
