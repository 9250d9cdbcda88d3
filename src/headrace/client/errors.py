"""What can go wrong between a client and a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode


class BrokerUnreachable(HeadraceError):
    """No broker answers at the address, or it stopped answering."""


class UnsupportedApi(HeadraceError):
    """The broker does not serve the version of an API that the client speaks."""


class BadResponse(HeadraceError):
    """The broker's answer does not follow the Kafka protocol."""


class RequestRefused(HeadraceError):
    """The broker understood the request and refused it with a Kafka error code."""

    def __init__(self, act: str, code: ErrorCode, detail: str | None = None) -> None:
        super().__init__(f"the broker refused to {act}: {detail or code.name} (Kafka error {code.value})")
        self.code = code
