"""OAUTHBEARER (RFC 7628): clients authenticate with a signed token (JWT) of an identity provider.

The provider's public keys (a JWKS) are in a file or at a URL. They are read again when a token is signed with
a key that is not known yet, at most every ten seconds, and otherwise every hour. A token must be signed with
an asymmetric key, not be expired, and be meant for this broker (its audience). PyJWT checks it, and is needed
only here: `pip install headrace[oauth]`.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from headrace.broker.listeners import InvalidSetting, is_loopback
from headrace.broker.security.sasl import USER, Authenticated, Step, Verification
from headrace.broker.security.scram import AuthenticationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jwt import PyJWK

    from headrace.broker.security.settings import OAuthSettings

log = logging.getLogger(__name__)

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
LEEWAY_SECONDS: Final = 30
REFRESH_SECONDS: Final = 3600.0
MIN_REFRESH_SECONDS: Final = 10.0
FETCH_SECONDS: Final = 5.0
MAX_JWKS_BYTES: Final = 2**20

_INITIAL = re.compile(
    r"n,(?:a=(?P<authzid>[^,\x01]+))?,\x01(?:[A-Za-z]+=[^\x01]*\x01)*?"
    r"auth=[Bb]earer +(?P<token>[A-Za-z0-9_.=+/~-]+)\x01(?:[A-Za-z]+=[^\x01]*\x01)*\x01"
)


class OAuthServer:
    """The one step of OAUTHBEARER."""

    def __init__(self, verifier: TokenVerifier) -> None:
        self._verifier = verifier

    def step(self, token: bytes) -> Step:
        """A check of the token, which may have to fetch keys."""
        match = _INITIAL.fullmatch(token.decode("utf-8", "replace"))
        if match is None:
            raise AuthenticationFailed("the OAUTHBEARER message is malformed")
        return Verification(lambda: self._verifier.verify(match["token"], match["authzid"]))


class TokenVerifier:
    """Checks tokens by the keys of the identity provider. To be used in one thread."""

    def __init__(self, settings: OAuthSettings, now: Callable[[], float] = time.monotonic) -> None:
        try:
            import jwt
        except ImportError as fault:
            raise InvalidSetting("OAUTHBEARER needs PyJWT: install headrace[oauth]") from fault
        self._jwt = jwt
        self._settings = settings
        self._now = now
        self._keys: dict[str, PyJWK] = {}
        self._read_at = float("-inf")

    def verify(self, token: str, authzid: str | None) -> Authenticated:
        """Who the token is for; raises `AuthenticationFailed`."""
        claims = self._claims(token)
        user = claims.get(self._settings.user_claim)
        if not isinstance(user, str) or not user:
            raise AuthenticationFailed(f"the token has no claim {self._settings.user_claim!r} with a name")
        if authzid not in (None, user):
            raise AuthenticationFailed(f"{user!r} asked to act as another user")
        return Authenticated(principal=USER + user, expires_at_ms=int(claims["exp"] * 1000))

    def _claims(self, token: str) -> Mapping[str, Any]:
        jwt = self._jwt
        try:
            key = self._key(str(jwt.get_unverified_header(token).get("kid", "")))
            # Only the algorithm of the key itself: a token cannot choose another one.
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp"]},
            )
        except jwt.PyJWTError as fault:
            raise AuthenticationFailed(f"the token is not valid: {fault}") from fault
        return claims

    def _key(self, key_id: str) -> PyJWK:
        age = self._now() - self._read_at
        if age > REFRESH_SECONDS or (key_id not in self._keys and age > MIN_REFRESH_SECONDS):
            self._read_at = self._now()
            try:
                self._keys = self._read_keys()
            except (OSError, ValueError, self._jwt.PyJWTError) as fault:
                log.warning("the keys in %s cannot be read: %s", self._settings.jwks, fault)
        if key_id not in self._keys:
            raise AuthenticationFailed(f"the token is signed with an unknown key {key_id[:80]!r}")
        return self._keys[key_id]

    def _read_keys(self) -> dict[str, PyJWK]:
        found = self._jwt.PyJWKSet.from_json(_read(self._settings.jwks).decode())
        return {key.key_id or "": key for key in found.keys if key.algorithm_name in ALGORITHMS}


def _read(source: str) -> bytes:
    """The content of a file or a URL; `check_source` has accepted it."""
    if "://" not in source:
        with open(source, "rb") as file:  # noqa: PTH123  a path as the operator wrote it
            return file.read(MAX_JWKS_BYTES)
    from urllib.request import urlopen

    with urlopen(source, timeout=FETCH_SECONDS) as response:  # noqa: S310  only http and https
        data: bytes = response.read(MAX_JWKS_BYTES)
    return data


def check_source(source: str) -> None:
    """Pass for a file, an https URL, and an http URL of this machine."""
    parts = urlsplit(source)
    if "://" in source and not (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    ):
        raise InvalidSetting(
            f"the keys of the identity provider are not read from {source}: use a file or an https URL"
        )
