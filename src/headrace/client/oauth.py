"""Tokens for SASL OAUTHBEARER: from a token endpoint by OIDC client credentials, or from a Python function.

A function has the form of confluent-kafka's `oauth_cb`: it gets the text of `sasl.oauthbearer.config` and
returns the token and the time at which it expires, in seconds since 1970. Tokens of an endpoint are kept, and
used by all connections of the process until most of their lifetime has passed.
"""

from __future__ import annotations

import importlib
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from headrace.client.errors import TokenUnavailable
from headrace.client.security import BadProfile

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.security import Security

TIMEOUT_S: Final = 10.0
USED_PART: Final = 0.8
"""The part of its lifetime for which a token is used: it must still be valid when the broker reads it."""
DEFAULT_LIFETIME_S: Final = 300.0
"""For endpoints that do not say how long a token is valid."""
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthToken:
    """A token and the time at which it expires."""

    text: str = field(repr=False)
    expires_s: float
    """In seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedToken:
    token: OAuthToken
    renew_s: float


_cache: dict[tuple[str | None, ...], _CachedToken] = {}
_cache_lock = threading.Lock()


def get_token(security: Security) -> OAuthToken:
    """A valid token for a new connection or a new session of it."""
    callback = security.get("sasl.oauthbearer.callback")
    if callback is not None:
        return _from_callback(security, callback)
    key = tuple(
        security.get(f"sasl.oauthbearer.{name}")
        for name in ("token.endpoint.url", "client.id", "client.secret", "scope")
    )
    with _cache_lock:
        cached = _cache.get(key)
        if cached is None or time.time() >= cached.renew_s:
            token = _from_endpoint(security)
            now_s = time.time()
            cached = _CachedToken(token=token, renew_s=now_s + USED_PART * (token.expires_s - now_s))
            _cache[key] = cached
        return cached.token


def extensions(security: Security) -> dict[str, str]:
    """The SASL extensions that go with the token."""
    text = security.get("sasl.oauthbearer.extensions") or ""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not found for _, found, _ in pairs):
        raise BadProfile(
            f"sasl.oauthbearer.extensions of the security profile {security.profile!r} is {text!r}: "
            "write name=value, separated by commas."
        )
    return {name.strip(): value.strip() for name, _, value in pairs}


def _from_callback(security: Security, name: str) -> OAuthToken:
    function = _load(security, name)
    try:
        text, expires_s, *_ = function(security.get("sasl.oauthbearer.config") or "")
    except Exception as fault:
        raise TokenUnavailable(
            f"{name}, which gets the tokens of the security profile {security.profile!r}, failed: "
            f"{type(fault).__name__}: {security.redact(str(fault))}"
        ) from fault
    return OAuthToken(text=text, expires_s=float(expires_s))


def _load(security: Security, name: str) -> Callable[[str], tuple[Any, ...]]:
    module, found, function = name.partition(":")
    try:
        loaded: Callable[[str], tuple[Any, ...]] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as fault:
        form = "" if found else " Write module:function."
        raise BadProfile(
            f"sasl.oauthbearer.callback of the security profile {security.profile!r} is {name!r}, which "
            f"cannot be imported: {fault}.{form}"
        ) from fault
    return loaded


def _from_endpoint(security: Security) -> OAuthToken:
    url = _checked_url(security)
    answer = _post(security, url)
    try:
        text = str(answer["access_token"])
        lifetime_s = float(answer.get("expires_in", DEFAULT_LIFETIME_S))
    except (KeyError, TypeError, ValueError):
        raise TokenUnavailable(f"the answer of the token endpoint {url} has no access_token") from None
    return OAuthToken(text=text, expires_s=time.time() + lifetime_s)


def _checked_url(security: Security) -> str:
    url = security.options["sasl.oauthbearer.token.endpoint.url"]
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return url
    raise BadProfile(
        f"sasl.oauthbearer.token.endpoint.url of the security profile {security.profile!r} is {url!r}: the "
        "client secret is sent there, so that it must be an https URL (or http on this machine)."
    )


def _post(security: Security, url: str) -> Any:
    # Here and not above: only profiles with a token endpoint need them.
    import ssl

    import urllib3

    form = {"grant_type": "client_credentials", "scope": security.get("sasl.oauthbearer.scope")}
    client = "{}:{}".format(
        security.options["sasl.oauthbearer.client.id"], security.options["sasl.oauthbearer.client.secret"]
    )
    headers = urllib3.make_headers(basic_auth=client) | {"Content-Type": "application/x-www-form-urlencoded"}
    context = ssl.create_default_context(cafile=security.get("https.ca.location"))
    try:
        with urllib3.PoolManager(ssl_context=context, timeout=TIMEOUT_S, retries=False) as pool:
            body = urlencode({name: value for name, value in form.items() if value})
            response = pool.request("POST", url, body=body, headers=headers, redirect=False)
    except urllib3.exceptions.HTTPError as fault:
        raise TokenUnavailable(f"the token endpoint {url} does not answer: {fault}") from fault
    return _read_answer(url, response.status, response.data)


def _read_answer(url: str, status: int, data: bytes) -> Any:
    try:
        answer = json.loads(data)
    except ValueError:
        answer = {}
    if status == 200:
        return answer
    reason = answer.get("error") if isinstance(answer, dict) else None
    raise TokenUnavailable(
        f"the token endpoint {url} refused the client: {reason or 'no reason given'} (HTTP {status}). Check "
        "sasl.oauthbearer.client.id, the client secret and the scope."
    )
