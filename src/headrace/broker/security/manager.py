"""The security of a broker: its users and settings, and the thread in which passwords are checked."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.security.acls import Access, Authorizer
from headrace.broker.security.certificates import NoMatchingRule, PrincipalMapper, distinguished_name
from headrace.broker.security.quotas import Quotas
from headrace.broker.security.sasl import ANONYMOUS, USER, mechanisms_of
from headrace.broker.security.store import SecurityStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.broker.listeners import Listener
    from headrace.broker.security.acls import Acl
    from headrace.broker.security.sasl import Exchange
    from headrace.broker.security.settings import OAuthSettings, SecuritySettings
    from headrace.broker.state_log import StateLog

T = TypeVar("T")


class SecurityManager:
    """Who may connect, and what they may do.

    ACLs are in force if the clients of at least one listener authenticate; then those of the others are
    `User:ANONYMOUS`. Otherwise everything is allowed, and nothing is checked.
    """

    def __init__(self, state: StateLog, settings: SecuritySettings, *, has_authentication: bool) -> None:
        self._settings = settings
        self._has_authentication = has_authentication
        self.store = SecurityStore(state)
        self.authorizer = Authorizer(frozenset(settings.super_users | self.store.super_users))
        self.authorizer.add(self.store.acls)
        self.quotas = Quotas(self.store.quotas)
        self._mapper = PrincipalMapper(settings.principal_mapping_rules)
        self._oauth = None if settings.oauth is None else _oauth(settings.oauth)
        # One thread: hashing passwords must not take both processors from those who are logged in.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-passwords")

    async def run(self, job: Callable[[], T]) -> T:
        """The result of a job that takes milliseconds of the processor."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, job)

    def mechanisms(self, listener: Listener) -> Mapping[str, Callable[[], Exchange]]:
        """The SASL mechanisms of a listener."""
        self.store.make_secret()
        return mechanisms_of(
            self._settings.sasl_mechanisms, self.store, self._oauth, is_private=listener.is_private
        )

    def access(self, principal: str, host: str) -> Access | None:
        """What a client may do; None for everything."""
        return Access(self.authorizer, principal, host) if self._has_authentication else None

    def add_acls(self, acls: Iterable[Acl]) -> None:
        """Let entries count from now on; in the log when this returns."""
        self.authorizer.add(self.store.add_acls(acls))

    def remove_acls(self, acls: Iterable[Acl]) -> None:
        """Let entries count no more."""
        gone = list(acls)
        self.store.remove_acls(gone)
        self.authorizer.remove(gone)

    def certificate_principal(self, certificate: Mapping[str, Any] | None) -> str:
        """Who the client with this certificate is; raises `NoMatchingRule`."""
        if not certificate:
            return ANONYMOUS
        principal = USER + self._mapper.user(distinguished_name(certificate))
        if principal == ANONYMOUS:
            raise NoMatchingRule("the name of clients without a certificate cannot be claimed by one")
        return principal

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=True)


def _oauth(settings: OAuthSettings) -> Callable[[], Exchange]:
    from headrace.broker.security.oauth import OAuthServer, TokenVerifier, check_source

    check_source(settings.jwks)
    verifier = TokenVerifier(settings)
    return lambda: OAuthServer(verifier)
