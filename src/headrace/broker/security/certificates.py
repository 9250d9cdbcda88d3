"""The TLS contexts of a broker, and the user that a client's certificate names.

Files are looked at again when a client connects, at most once a second: a renewed certificate is used without
a restart. Files that cannot be used are reported once, and the old ones stay in use.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.listeners import InvalidSetting
from headrace.broker.security.settings import ClientAuth
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from headrace.broker.listeners import Listener
    from headrace.broker.security.settings import SecuritySettings

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0
_VERIFY: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def tls_contexts(settings: SecuritySettings, listener: Listener) -> TlsContexts | None:
    """The TLS contexts of a listener; clients that use SASL are not asked for certificates, as in Kafka."""
    if not listener.protocol.has_tls:
        return None
    return TlsContexts(settings, ClientAuth.NONE if listener.protocol.has_sasl else settings.client_auth)


class TlsContexts:
    """The newest usable context of a listener."""

    def __init__(
        self,
        settings: SecuritySettings,
        client_auth: ClientAuth,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._client_auth = client_auth
        self._now = now
        self._stamps = self._read_stamps()
        self._context = self._load()
        self._checked_at = now()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        if self._now() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = self._now()
            self._reload()
        return self._context

    def _reload(self) -> None:
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._context = self._load()
        except InvalidSetting as fault:
            log.error("the old certificate stays in use: %s", fault)  # noqa: TRY400  no stack is needed
        else:
            log.warning("the certificate in %s was loaded", self._settings.certificate)

    def _read_stamps(self) -> list[tuple[int, int] | None]:
        settings = self._settings
        files = (
            settings.certificate,
            settings.private_key,
            settings.private_key_password,
            settings.client_ca,
        )
        return [_stamp(file) for file in files if file is not None]

    def _load(self) -> ssl.SSLContext:
        settings = self._settings
        assert settings.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.verify_mode = _VERIFY[self._client_auth]
        try:
            context.load_cert_chain(
                settings.certificate,
                settings.private_key,
                password=lambda: _password(settings.private_key_password),
            )
            if self._client_auth is not ClientAuth.NONE:
                context.load_verify_locations(cafile=settings.client_ca)
        except (OSError, ValueError) as fault:  # also what the ssl module raises
            raise InvalidSetting(
                f"the certificate {settings.certificate} cannot be used: {_reason(fault)}; check "
                "--tls-certificate, --tls-key and --tls-client-ca"
            ) from fault
        return context


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _password(file: Path | None) -> str:
    """The password of the private key, which is asked for only if the key is encrypted."""
    if file is None:
        raise ValueError(
            "the private key is encrypted: name the file with its password (--tls-key-password-file)"
        )
    return file.read_text().partition("\n")[0]


def _reason(fault: Exception) -> str:
    file = getattr(fault, "filename", None)
    text = getattr(fault, "strerror", None) or getattr(fault, "reason", None) or str(fault)
    return f"{file}: {text}" if file else str(text)


# ---------------------------------------------------------------- principals

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""The attributes that RFC 2253 abbreviates."""
_SPECIAL = re.compile(r'[,+"\\<>;=]|^[ #]| $')


class NoMatchingRule(HeadraceError):
    """No rule maps the name in a certificate to a user."""


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """The subject of a certificate as RFC 2253 writes it: `CN=alice,OU=shop,C=DE`."""
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(name, name)}={_escape(value)}" for name, value in relative)
        for relative in reversed(certificate.get("subject", ()))
    )


def _escape(value: str) -> str:
    return _SPECIAL.sub(lambda match: "\\" + match[0], value)


class _Rule(NamedTuple):
    """One rule; without a pattern it is DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The user of that name, if the rule applies."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        user = match.expand(self.replacement)
        return {"L": user.lower(), "U": user.upper()}.get(self.case, user)


_RULE = re.compile(r"\s*(?:DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")


class PrincipalMapper:
    """`ssl.principal.mapping.rules` of Kafka: the first rule that matches the whole name decides.

    >>> mapper = PrincipalMapper("RULE:^CN=(.*?),OU=shop.*$/$1/L,DEFAULT")
    >>> mapper.user("CN=Alice,OU=shop,C=DE"), mapper.user("CN=bob")
    ('alice', 'CN=bob')
    """

    def __init__(self, rules: str) -> None:
        self._rules: list[_Rule] = []
        position = 0
        while position < len(rules):
            match = _RULE.match(rules, position)
            if match is None:
                raise InvalidSetting(
                    f"the principal mapping rules cannot be read from {rules[position:][:80]!r} on: write "
                    "DEFAULT or RULE:pattern/replacement/[LU], separated by commas"
                )
            self._rules.append(_rule(match))
            position = match.end()
        self._rules = self._rules or [_Rule()]

    def user(self, name: str) -> str:
        """The user for a name; raises `NoMatchingRule`."""
        for rule in self._rules:
            user = rule.apply(name)
            if user is not None:
                return user
        raise NoMatchingRule(f"no rule of ssl.principal.mapping.rules applies to {name!r}")


def _rule(match: re.Match[str]) -> _Rule:
    if match[1] is None:
        return _Rule()
    try:
        pattern = re.compile(match[1].replace(r"\/", "/"))
        # Kafka writes groups as $1, Python as \g<1>.
        replacement = re.sub(r"\$(\d+)", r"\\g<\1>", match[2].replace("\\", "\\\\"))
        if any(int(number) > pattern.groups for number in re.findall(r"\$(\d+)", match[2])):
            raise InvalidSetting(f"{match[0].strip(' ,')!r} uses a group that its pattern does not have")
    except re.error as fault:
        raise InvalidSetting(f"{match[0].strip(' ,')!r} has a bad pattern: {fault}") from fault
    return _Rule(pattern, replacement, match[3])
