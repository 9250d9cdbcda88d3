"""Errors of the gateway, and the HTTP status of every other error."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from headrace.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    OffsetOutOfRange,
    RequestRefused,
    TokenUnavailable,
    UnknownPartition,
    UnknownTopic,
)
from headrace.errors import HeadraceError
from headrace.feeds.catalog import InvalidToken, TokenExpired, UnknownView

if TYPE_CHECKING:
    from collections.abc import Mapping

UNAUTHORIZED_CODES: Final = frozenset(
    {
        29,  # TOPIC_AUTHORIZATION_FAILED
        30,  # GROUP_AUTHORIZATION_FAILED
        31,  # CLUSTER_AUTHORIZATION_FAILED
        53,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    }
)
UNKNOWN_CODES: Final = frozenset({3, 17})  # UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION
RETRY_AFTER_S: Final = 1


class HttpError(HeadraceError):
    """An error with an HTTP status."""

    def __init__(
        self, status: HTTPStatus, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def too_many(message: str) -> HttpError:
    """The error of a request that should be repeated later."""
    return HttpError(HTTPStatus.TOO_MANY_REQUESTS, message, ((b"retry-after", str(RETRY_AFTER_S).encode()),))


def http_error(fault: HeadraceError) -> HttpError:
    """The error with its HTTP status."""
    return fault if isinstance(fault, HttpError) else HttpError(_status_of(fault), str(fault))


_STATUSES: Final[Mapping[type[HeadraceError], HTTPStatus]] = {
    UnknownView: HTTPStatus.NOT_FOUND,
    UnknownTopic: HTTPStatus.NOT_FOUND,
    UnknownPartition: HTTPStatus.NOT_FOUND,
    InvalidToken: HTTPStatus.BAD_REQUEST,
    TokenExpired: HTTPStatus.GONE,
    OffsetOutOfRange: HTTPStatus.GONE,
    AuthenticationFailed: HTTPStatus.UNAUTHORIZED,
    TokenUnavailable: HTTPStatus.UNAUTHORIZED,
    BrokerUnreachable: HTTPStatus.BAD_GATEWAY,
}


def _status_of(fault: HeadraceError) -> HTTPStatus:
    if isinstance(fault, RequestRefused):
        if fault.code.value in UNAUTHORIZED_CODES:
            return HTTPStatus.FORBIDDEN
        if fault.code.value in UNKNOWN_CODES:
            return HTTPStatus.NOT_FOUND
    return next(
        (status for kind, status in _STATUSES.items() if isinstance(fault, kind)), HTTPStatus.BAD_GATEWAY
    )
