"""Signatures of webhooks, as the specification Standard Webhooks describes them.

A message carries `webhook-id`, `webhook-timestamp` (seconds since 1970) and `webhook-signature`: `v1,` and
the HMAC-SHA256 of id, timestamp and body, with dots between, in base64. Libraries for many languages check
it; `verify` does in Python.
"""

from __future__ import annotations

import hmac
import time
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
PREFIX: Final = "whsec_"
TOLERANCE_S: Final = 300


class BadSignature(HeadraceError):
    """A message that did not come from who knows the secret, or that was sent long ago."""


def sign(secret: str, identity: str, timestamp: int, body: bytes) -> str:
    """The signature of a message.

    >>> sign("secret", "1", 1767225600, b"{}")
    'v1,1TfhAOIbc37r4osrJgCnnTGAjPyTcZ0HSz/khBmWC1I='
    """
    key = b64decode(secret.removeprefix(PREFIX)) if secret.startswith(PREFIX) else secret.encode()
    content = b"%b.%d.%b" % (identity.encode(), timestamp, body)
    return "v1," + b64encode(hmac.digest(key, content, "sha256")).decode()


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, tolerance_s: float = TOLERANCE_S) -> str:
    """The id of a message that is genuine, and not older than the tolerance; `BadSignature` otherwise.

    Whoever remembers the ids does not take a message twice.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        identity, timestamp, signatures = given[ID], int(given[TIMESTAMP]), given[SIGNATURE].split()
    except (KeyError, ValueError):
        raise BadSignature(f"the message has no {ID}, {TIMESTAMP} and {SIGNATURE}.") from None
    if abs(time.time() - timestamp) > tolerance_s:
        raise BadSignature(f"the message was signed more than {tolerance_s:g} s ago, or by another clock.")
    expected = sign(secret, identity, timestamp, body)
    if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in signatures):
        raise BadSignature("the signature does not fit the message: it was made with another secret.")
    return identity
