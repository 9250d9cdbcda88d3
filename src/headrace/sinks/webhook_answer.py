"""What a receiver's answer means for a row.

```text
2xx                                  the row was taken
429, 502, 503, 504, no connection    the receiver is away: everything waits, as long as it asks for
408, 409, 425, other 5xx,
no answer in time, connection cut    the row failed: it is tried again, and given up in the end
everything else                      the row is refused
```
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
)

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

AWAY: Final = frozenset({429, 502, 503, 504})
FAILED: Final = frozenset({408, 409, 425})
LONGEST_REASON: Final = 200


class Answer(NamedTuple):
    """What became of an event."""

    kind: Literal["taken", "refused", "failed", "away"]
    reason: str = ""
    wait_s: float = 0.0


def read_answer(response: BaseHTTPResponse) -> Answer:
    """What the receiver said."""
    text = _text(response)
    if response.status < 300:
        return Answer("taken")
    reason = f"it answered {response.status}" + (f": {text}" if text else "")
    if response.status in AWAY:
        return Answer("away", reason, _retry_after_s(response.headers.get("Retry-After", "")))
    if response.status in FAILED or response.status >= 500:
        return Answer("failed", reason)
    return Answer("refused", reason)


def read_fault(fault: HTTPError) -> Answer:
    """What it means that there was no answer."""
    match fault:
        case NewConnectionError() | ConnectTimeoutError():
            return Answer("away", f"no connection: {_last_words(fault)}")
        case ReadTimeoutError():
            return Answer("failed", "no answer in time")
        case ProtocolError():
            return Answer("failed", f"the connection was cut: {_last_words(fault)}")
        case _:  # certificates, addresses
            return Answer("away", _last_words(fault))


def _text(response: BaseHTTPResponse) -> str:
    """The beginning of what the receiver says; a connection with more to say is not used again."""
    try:
        said = response.read(LONGEST_REASON)
        if len(said) < LONGEST_REASON:
            response.release_conn()
        else:
            response.close()
    except HTTPError:  # its status is what counts
        response.close()
        return ""
    return " ".join(said.decode(errors="replace").split())


def _retry_after_s(text: str) -> float:
    """The seconds that a receiver asks to wait: a number, or a date."""
    if text.strip().isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, (moment - datetime.now(UTC)).total_seconds()) if moment.tzinfo else 0.0


def _last_words(fault: Exception) -> str:
    """What went wrong, without the objects that urllib3 names before it."""
    return str(fault).rpartition(": ")[2].rstrip(")'") or type(fault).__name__
