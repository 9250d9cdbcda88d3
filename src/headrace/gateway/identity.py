"""Who a request acts as: users of the broker, who log in to it through the gateway.

`Authorization: Basic` becomes SCRAM or PLAIN, and `Authorization: Bearer` becomes OAUTHBEARER. The gateway
opens connections to the broker with these credentials, so that the broker authenticates users and enforces
their ACLs: the gateway has no users and no rules of its own. An `Identity` has the connections of one user.
Its credentials are checked again after a minute, with a new connection, so that a changed password or an
expired token counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from base64 import b64decode, urlsafe_b64decode
from collections import OrderedDict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from headrace.client.bootstrap import Bootstrap
from headrace.client.cluster import Cluster
from headrace.client.errors import AuthenticationFailed
from headrace.client.security import Security, register_profile, resolve, unregister_profile
from headrace.errors import HeadraceError, Misuse
from headrace.gateway.errors import HttpError, http_error
from headrace.gateway.idempotency import KeyedWriter
from headrace.gateway.producer import RecordProducer
from headrace.gateway.views import ViewCopies

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.gateway.options import GatewayOptions

CHECK_AGAIN_S: Final = 60.0
IDLE_S: Final = 600.0
MAX_IDENTITIES: Final = 200
CONCURRENT_LOGINS: Final = 4
"""Logins cost the broker CPU time: guessing passwords must not."""
LOGIN_TIMEOUT_S: Final = 10.0
CHALLENGE: Final = ((b"www-authenticate", b'Basic realm="headrace", charset="UTF-8", Bearer'),)
DEFAULT_MECHANISM: Final = "SCRAM-SHA-256"


class Identity:
    """The connections of one user, or of the gateway itself; for one event loop."""

    def __init__(self, options: GatewayOptions, bootstrap: str, user: str | None = None) -> None:
        self.bootstrap = bootstrap
        self.user = user
        self.checked_at = time.monotonic()
        self.used_at = self.checked_at
        self.views = ViewCopies(bootstrap)
        self.on_close: list[Callable[[], None]] = []
        """Called when the identity disconnects."""
        self._options = options
        self._producer: RecordProducer | None = None
        self._keyed: KeyedWriter | None = None

    @property
    def producer(self) -> RecordProducer:
        """The producer of this user."""
        if self._producer is None:
            self._producer = RecordProducer(self.bootstrap, timeout_s=self._options.produce_timeout_s)
        return self._producer

    @property
    def keyed(self) -> KeyedWriter:
        """The writer of this user's requests with idempotency keys."""
        if self._keyed is None:
            self._keyed = KeyedWriter(
                self.bootstrap,
                gateway=self._options.name,
                user=self.user,
                timeout_s=self._options.produce_timeout_s,
            )
        return self._keyed

    async def close(self) -> None:
        """Wait for records in flight, and disconnect."""
        self.views.close()
        for callback in self.on_close:
            callback()
        if self._producer is not None:
            await self._producer.close()
        if self._keyed is not None:
            await self._keyed.close()


class Identities:
    """The identities of recent requests, by their credentials."""

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._logins = asyncio.Semaphore(CONCURRENT_LOGINS)
        self._known: OrderedDict[bytes, Identity] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self.anonymous: Identity | None = None
        if options.authentication:
            self._base = _base_of(options.broker)
        else:
            self.anonymous = Identity(options, options.broker)

    async def of(self, authorization: bytes | None) -> Identity:
        """The identity of a request; raises an error with 401 if the broker refuses it."""
        if self.anonymous is not None:
            return self.anonymous
        if authorization is None:
            raise HttpError(HTTPStatus.UNAUTHORIZED, "the request has no credentials", CHALLENGE)
        digest = hashlib.sha256(authorization).digest()
        identity = self._known.get(digest)
        now = time.monotonic()
        if identity is None or now - identity.checked_at > CHECK_AGAIN_S:
            identity = await self._login(digest, authorization)
        identity.used_at = now
        self._known.move_to_end(digest)
        return identity

    async def close(self) -> None:
        """Disconnect all users."""
        identities = list(self._known.values()) if self.anonymous is None else [self.anonymous]
        await asyncio.gather(*(identity.close() for identity in identities), *self._closing)

    async def _login(self, digest: bytes, authorization: bytes) -> Identity:
        user, options = _credentials(authorization, self._base)
        profile = f"gateway-{digest.hex()[:24]}"
        register_profile(Security(profile=profile, options={**self._base.options, **options}))
        bootstrap = str(Bootstrap(addresses=Bootstrap.of(self._options.broker).addresses, profile=profile))
        try:
            async with self._logins:
                await asyncio.to_thread(_check_login, bootstrap)
        except AuthenticationFailed:
            self._forget(digest, profile)
            raise HttpError(
                HTTPStatus.UNAUTHORIZED, "the broker refused the credentials", CHALLENGE
            ) from None
        except HeadraceError as fault:
            raise http_error(fault) from fault
        identity = self._known.setdefault(digest, Identity(self._options, bootstrap, user))
        identity.checked_at = time.monotonic()
        self._evict()
        return identity

    def _evict(self) -> None:
        now = time.monotonic()
        for digest, identity in list(self._known.items()):
            if len(self._known) > MAX_IDENTITIES or now - identity.used_at > IDLE_S:
                self._forget(digest, Bootstrap.of(identity.bootstrap).profile)

    def _forget(self, digest: bytes, profile: str) -> None:
        unregister_profile(profile)
        identity = self._known.pop(digest, None)
        if identity is not None:
            task = asyncio.get_running_loop().create_task(identity.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def pass_token(token: str) -> tuple[str, float]:
    """The token of a user, for OAUTHBEARER (`sasl.oauthbearer.callback`), and when it expires."""
    expires = _claims(token).get("exp")
    return token, float(expires) if isinstance(expires, int | float) else time.time() + CHECK_AGAIN_S


def _base_of(broker: str) -> Security:
    profile = Bootstrap.of(broker).profile
    base = resolve(profile, credentials=False)
    if not base.uses_sasl:
        raise Misuse(
            f"--authentication logs users in to the broker, but the security profile {profile!r} of "
            f"{broker} does not use SASL: name a profile with security.protocol SASL_SSL (docs/gateway.md)."
        )
    return base


def _credentials(authorization: bytes, base: Security) -> tuple[str, dict[str, str]]:
    """The user, and the options of the security profile that logs in as the user."""
    scheme, _, rest = authorization.partition(b" ")
    try:
        if scheme.lower() == b"basic":
            user, found, password = b64decode(rest.strip(), validate=True).decode().partition(":")
            if not found or not user:
                raise ValueError
            mechanism = base.get("sasl.mechanism") or DEFAULT_MECHANISM
            if mechanism == "OAUTHBEARER":
                mechanism = DEFAULT_MECHANISM
            return user, {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        if scheme.lower() == b"bearer":
            token = rest.strip().decode("ascii")
            subject = _claims(token).get("sub")
            return str(subject or "token"), {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.callback": f"{__name__}:pass_token",
                "sasl.oauthbearer.config": token,
            }
    except ValueError:
        pass
    raise HttpError(HTTPStatus.UNAUTHORIZED, "use Authorization: Basic or Bearer", CHALLENGE)


def _claims(token: str) -> dict[str, Any]:
    """The claims of a token, unverified: the broker verifies it."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _check_login(bootstrap: str) -> None:
    with Cluster.of(bootstrap, client_id="headrace-gateway", timeout_s=LOGIN_TIMEOUT_S) as cluster:
        cluster.any()
