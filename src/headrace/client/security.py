"""Security profiles: how a client encrypts its connections and authenticates itself.

A profile is a section `[security.NAME]` of `headrace.toml`, with options under librdkafka's names.
Variables of the environment override single options (`sasl.password` is `HEADRACE_SASL_PASSWORD`), and can
stand for a whole profile where there is no file. Secrets can also be read from files: `sasl.password.file`.

`resolve` is the only place where a profile becomes options. It runs in the process that connects, for each
new connection: only the name of a profile is passed between processes, and a changed password file counts
from the next connection on. A `Security` cannot be pickled, and does not print its secrets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from headrace.client.bootstrap import PLAINTEXT
from headrace.errors import Misuse
from headrace.settings import SECURITY_PROFILE, SECURITY_PROTOCOL, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROTOCOLS: Final = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
FROM_FILE: Final = ".file"
"""At the end of a secret's name: the secret is the content of this file."""


class BadProfile(Misuse):
    """A security profile that does not exist, or whose options are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOption:
    """One option of a profile."""

    name: str
    doc: str
    default: str = ""
    choices: tuple[str, ...] = ()
    is_secret: bool = False
    is_path: bool = False

    @property
    def variable(self) -> str:
        """The variable of the environment that overrides it."""
        return "HEADRACE_" + self.name.upper().replace(".", "_")


def _secret(name: str, doc: str) -> tuple[SecurityOption, SecurityOption]:
    file = SecurityOption(
        name=name + FROM_FILE, doc=f"File whose first line is the value of `{name}`.", is_path=True
    )
    return SecurityOption(name=name, doc=doc, is_secret=True), file


OPTIONS: Final = {
    option.name: option
    for option in (
        SecurityOption(
            name="security.protocol",
            doc="Encryption and authentication of connections.",
            choices=PROTOCOLS,
        ),
        SecurityOption(
            name="sasl.mechanism",
            doc="How clients authenticate, with `SASL_PLAINTEXT` and `SASL_SSL`.",
            choices=MECHANISMS,
        ),
        SecurityOption(name="sasl.username", doc="User of `PLAIN` and `SCRAM`."),
        *_secret("sasl.password", "Password of `PLAIN` and `SCRAM`."),
        SecurityOption(
            name="sasl.oauthbearer.token.endpoint.url",
            doc="Where OAUTHBEARER gets its tokens, by OIDC client credentials: an https URL.",
        ),
        SecurityOption(name="sasl.oauthbearer.client.id", doc="Client id for the token endpoint."),
        *_secret("sasl.oauthbearer.client.secret", "Client secret for the token endpoint."),
        SecurityOption(name="sasl.oauthbearer.scope", doc="Scopes of the token, separated by spaces."),
        SecurityOption(
            name="sasl.oauthbearer.extensions",
            doc="SASL extensions sent with the token: `name=value`, separated by commas.",
        ),
        SecurityOption(
            name="sasl.oauthbearer.callback",
            doc="Python function that returns a token, as `module:function`, instead of a token endpoint.",
        ),
        SecurityOption(
            name="sasl.oauthbearer.config", doc="Text that the function gets as its only argument."
        ),
        SecurityOption(
            name="ssl.ca.location",
            doc="PEM file of the certificate authorities to trust.",
            default="those of the system",
            is_path=True,
        ),
        SecurityOption(
            name="ssl.certificate.location",
            doc="PEM file of the client's certificate, for mutual TLS.",
            is_path=True,
        ),
        SecurityOption(
            name="ssl.key.location",
            doc="PEM file of the client's private key.",
            default="in the certificate's file",
            is_path=True,
        ),
        *_secret("ssl.key.password", "Password of an encrypted private key."),
        SecurityOption(
            name="ssl.endpoint.identification.algorithm",
            doc="Whether the broker's certificate must be for the host name connected to.",
            default="https",
            choices=("https", "none"),
        ),
        SecurityOption(
            name="https.ca.location",
            doc="PEM file of the certificate authorities to trust at the token endpoint.",
            default="those of the system",
            is_path=True,
        ),
    )
}
"""Every option of a profile, by its name."""

ELSEWHERE: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.jaas.config": "sasl.username and sasl.password",
    "sasl.oauthbearer.method": "sasl.oauthbearer.token.endpoint.url",
    "sasl.login.callback.handler.class": "sasl.oauthbearer.callback",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
    "ssl.truststore.certificates": "ssl.ca.location, a PEM file",
    "ssl.truststore.password": "ssl.ca.location, a PEM file without a password",
    "ssl.truststore.type": "ssl.ca.location, a PEM file",
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location, PEM files",
    "ssl.keystore.certificate.chain": "ssl.certificate.location, a PEM file",
    "ssl.keystore.key": "ssl.key.location, a PEM file",
    "ssl.keystore.password": "ssl.key.password",
    "ssl.keystore.type": "ssl.certificate.location and ssl.key.location, PEM files",
    "enable.ssl.certificate.verification": "ssl.ca.location: certificates are always verified",
}
"""What Java and librdkafka name otherwise, and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The options of one profile, checked. It stays in its process."""

    profile: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.options["security.protocol"] in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates itself by SASL."""
        return self.options["security.protocol"].startswith("SASL_")

    @property
    def mechanism(self) -> str:
        """The SASL mechanism."""
        return self.options["sasl.mechanism"]

    def get(self, name: str) -> str | None:
        """The value of an option, if it is set."""
        return self.options.get(name)

    def redact(self, text: str) -> str:
        """The text without the secrets of this profile: a peer may repeat what it was sent."""
        for option in OPTIONS.values():
            value = self.options.get(option.name)
            if option.is_secret and value:
                text = text.replace(value, "***")
        return text

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the options of the security profile {self.profile!r} stay in their process: pass its name"
        )


_registered: dict[str, Security] = {}
"""Profiles of this process only, by their names."""


def register_profile(security: Security) -> None:
    """Make a profile known in this process: a server that acts for its users has one for each of them."""
    _registered[security.profile] = security


def unregister_profile(profile: str) -> None:
    """Forget a profile of this process; open connections stay."""
    _registered.pop(profile, None)


def resolve(profile: str, settings: Settings | None = None, *, credentials: bool = True) -> Security:
    """The options of the profile of this name, in this process or with these settings.

    With `credentials=False` it may lack a user and a password, for a server that gets them from its users.
    """
    if profile == PLAINTEXT:
        return Security(profile=profile, options={"security.protocol": PLAINTEXT})
    if profile in _registered:
        return _registered[profile]
    settings = settings or Settings.read()
    if profile not in settings.security_profiles() and not settings.environment.get(SECURITY_PROTOCOL):
        raise BadProfile(_unknown(profile, settings))
    merged = _merge(_from_file(profile, settings), _from_environment(settings))
    options = _with_secrets(profile, merged)
    _check(profile, options, credentials=credentials)
    if "ssl.certificate.location" in options:  # librdkafka does not look for the key there
        options.setdefault("ssl.key.location", options["ssl.certificate.location"])
    return Security(profile=profile, options=options)


def _from_file(profile: str, settings: Settings) -> dict[str, str]:
    """The options in the section of the profile; paths are relative to the file's folder."""
    section = settings.security_profiles().get(profile, {})
    options = dict(_flatten(section))
    for name, value in options.items():
        if name not in OPTIONS:
            raise BadProfile(f"{settings.file}: {_misnamed(profile, name)}")
        if not isinstance(value, str):
            raise BadProfile(
                f'{settings.file}: {name} of the security profile {profile!r} must be text: {name} = "…"'
            )
    folder = Path() if settings.file is None else settings.file.parent
    return {name: str(folder / value) if OPTIONS[name].is_path else value for name, value in options.items()}


def _flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """TOML reads a dotted name without quotes as tables inside each other."""
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_environment(settings: Settings) -> dict[str, str]:
    """The options in the environment; paths are relative to the current folder."""
    found = {}
    for option in OPTIONS.values():
        value = settings.environment.get(option.variable)
        if value:
            found[option.name] = str(settings.folder / value) if option.is_path else value
    return found


def _merge(file: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Both, where the environment wins: a secret in it also replaces the file that would hold it."""
    secrets = {name.removesuffix(FROM_FILE) for name in environment}
    kept = {name: value for name, value in file.items() if name.removesuffix(FROM_FILE) not in secrets}
    return {**kept, **environment}


def _with_secrets(profile: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options, with the secrets that are in files."""
    read = {}
    for name, value in options.items():
        if not name.endswith(FROM_FILE):
            continue
        secret = name.removesuffix(FROM_FILE)
        if secret in options:
            raise BadProfile(
                f"the security profile {profile!r} has both {secret} and {name}: keep one of them."
            )
        try:
            read[secret] = Path(value).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as fault:
            reason = fault.strerror if isinstance(fault, OSError) else "it is not text in UTF-8"
            raise BadProfile(
                f"{name} of the security profile {profile!r} cannot be read: {value}: {reason}"
            ) from None  # the cause would show the undecodable bytes
    plain = {name: value for name, value in options.items() if not name.endswith(FROM_FILE)}
    return {**plain, **read}


def _check(profile: str, options: Mapping[str, str], *, credentials: bool) -> None:
    for name, value in options.items():
        _check_value(profile, OPTIONS[name], value)
    protocol = options.get("security.protocol")
    if protocol is None:
        raise BadProfile(
            f"the security profile {profile!r} has no security.protocol: set it to {_or(PROTOCOLS)}."
        )
    if protocol.startswith("SASL_") and credentials:
        _check_sasl(profile, options)
    if "ssl.key.location" in options and "ssl.certificate.location" not in options:
        raise BadProfile(_missing(profile, "ssl.certificate.location", "ssl.key.location"))


def _check_value(profile: str, option: SecurityOption, value: str) -> None:
    if option.choices and value not in option.choices:
        raise BadProfile(
            f"{option.name} of the security profile {profile!r} is {value!r}: write {_or(option.choices)}."
        )
    if option.is_path and not Path(value).is_file():
        raise BadProfile(f"{option.name} of the security profile {profile!r}: there is no file {value}")


def _check_sasl(profile: str, options: Mapping[str, str]) -> None:
    mechanism = options.get("sasl.mechanism")
    if mechanism is None:
        raise BadProfile(
            f"the security profile {profile!r} has no sasl.mechanism: set it to {_or(MECHANISMS)}."
        )
    if mechanism != "OAUTHBEARER":
        needed = ["sasl.username", "sasl.password"]
    elif "sasl.oauthbearer.callback" in options:
        needed = []
    else:
        needed = [
            "sasl.oauthbearer.token.endpoint.url",
            "sasl.oauthbearer.client.id",
            "sasl.oauthbearer.client.secret",
        ]
    for name in needed:
        if name not in options:
            raise BadProfile(_missing(profile, name, f"sasl.mechanism {mechanism}"))


def _missing(profile: str, name: str, because: str) -> str:
    option = OPTIONS[name]
    where = f"set it in [security.{profile}] of headrace.toml or as {option.variable}"
    if option.is_secret:
        where += f", or name a file by {name}{FROM_FILE} or {option.variable}_FILE"
    return f"the security profile {profile!r} has no {name}, which {because} needs: {where}."


def _misnamed(profile: str, name: str) -> str:
    if name in ELSEWHERE:
        return f"the security profile {profile!r} has {name}: use {ELSEWHERE[name]}."
    close = get_close_matches(name, OPTIONS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(OPTIONS)}."
    return f"the security profile {profile!r} has an unknown option {name}: {hint}"


def _unknown(profile: str, settings: Settings) -> str:
    if profile in PROTOCOLS:
        return (
            f"{profile} is a security.protocol, and not the name of a security profile: write "
            f'[security.NAME] in headrace.toml, with security.protocol = "{profile}" and its other options, '
            "and connect to NAME://HOST:PORT."
        )
    known = ", ".join(settings.security_profiles()) or "none"
    if settings.file is None:
        where = f"no headrace.toml was found in {settings.project.absolute()} or above"
    else:
        where = f"the profiles of {settings.file} are: {known}"
    return (
        f"there is no security profile {profile!r} in this process: {where}. Write [security.{profile}] in "
        "headrace.toml and let HEADRACE_PROJECT name its folder, or set HEADRACE_SECURITY_PROTOCOL and the "
        f"other options in the environment. ({SECURITY_PROFILE.variable}={PLAINTEXT} connects without.)"
    )


def _or(choices: tuple[str, ...]) -> str:
    return ", ".join(choices[:-1]) + " or " + choices[-1]
