"""An Apache Kafka with secured listeners: TLS with SASL, mutual TLS, and SASL without TLS.

    with SecuredKafka(folder) as kafka:
        connect_to(kafka.listeners["SASL_SSL"], kafka.profile("SASL_SSL"))

Certificates come from an authority of its own (trustme), and users of SCRAM from Kafka's storage tool. The
folder gets PEM files, password files and a `headrace.toml` with a security profile for each way to connect.
`python -m tools.secured_kafka --folder .` runs one until Ctrl-C.
"""

import argparse
import base64
import json
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tools.apache_kafka import ApacheKafka

USER = "jobs"
SASL_SSL, SASL_PLAINTEXT, MUTUAL_TLS = "SASL_SSL", "SASL_PLAINTEXT", "MUTUAL"
LISTENERS = {SASL_SSL: "SASL_SSL", SASL_PLAINTEXT: "SASL_PLAINTEXT", MUTUAL_TLS: "SSL"}
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
KAFKA = "org.apache.kafka.common.security"

TOML = """
[security.{name}]
security.protocol = "{protocol}"
sasl.mechanism = "{mechanism}"
sasl.username = "{user}"
sasl.password.file = "{folder}/password"
ssl.ca.location = "{folder}/ca.pem"
"""
MUTUAL_TOML = """
[security.mutual]
security.protocol = "SSL"
ssl.ca.location = "{folder}/ca.pem"
ssl.certificate.location = "{folder}/client.pem"
ssl.key.location = "{folder}/client.key"
ssl.key.password.file = "{folder}/password"
"""
TOKENS_TOML = """
[security.tokens]
security.protocol = "SASL_SSL"
sasl.mechanism = "OAUTHBEARER"
sasl.oauthbearer.callback = "tools.secured_kafka:unsigned_token"
sasl.oauthbearer.config = "{user}"
ssl.ca.location = "{folder}/ca.pem"
"""


class SecuredKafka(ApacheKafka):
    """One node with listeners for every way to authenticate; `folder` has what clients need."""

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare certificates, users and profiles in `folder`, and the node.

        `port` is where it listens with TLS and SASL; by default on a free one. `users` are more users of
        SCRAM, with their passwords.
        """
        self.folder = folder
        self.password = secrets.token_urlsafe(18)
        _write_certificates(folder, self.password)
        (folder / "password").write_text(self.password)
        (folder / "headrace.toml").write_text(_profiles(folder))
        credentials = [
            f"--add-scram={mechanism}=[name={user},password={password}]"
            for user, password in {USER: self.password, **(users or {})}.items()
            for mechanism in MECHANISMS
            if mechanism.startswith("SCRAM")
        ]
        super().__init__(
            heap="512M",
            properties={**_tls(folder), **_sasl(self.password), **(properties or {})},
            listeners=LISTENERS,
            listener_ports={} if port is None else {SASL_SSL: port},
            storage_options=credentials,
        )

    def bootstrap_of(self, profile: str) -> str:
        """The address for a profile of the folder's `headrace.toml`, with the profile before it."""
        listener = {"mutual": MUTUAL_TLS, "unencrypted": SASL_PLAINTEXT}.get(profile, SASL_SSL)
        return f"{profile}://{self.listeners[listener]}"


def unsigned_token(user: str, lifetime_s: float = 300) -> tuple[str, float]:
    """A token that Kafka's unsecured validator accepts, and when it expires."""
    expires_s = time.time() + lifetime_s
    # Not issued just now: Kafka's clock has whole milliseconds, and would see a time in the future.
    claims = {"sub": user, "iat": expires_s - 301, "exp": expires_s}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + ".", expires_s


SASL_PROFILES = {
    "scram256": ("SASL_SSL", "SCRAM-SHA-256"),
    "scram512": ("SASL_SSL", "SCRAM-SHA-512"),
    "plain": ("SASL_SSL", "PLAIN"),
    "unencrypted": ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
}
"""Profiles that authenticate with a password: protocol and mechanism."""


def sasl_profiles(folder: Path, user: str) -> str:
    """The sections of `headrace.toml` for `SASL_PROFILES`; the password is in the folder."""
    return "".join(
        TOML.format(name=name, protocol=protocol, mechanism=mechanism, user=user, folder=folder)
        for name, (protocol, mechanism) in SASL_PROFILES.items()
    )


def _profiles(folder: Path) -> str:
    return "".join(
        [
            '[broker]\nsecurity = "scram512"\n',
            sasl_profiles(folder, USER),
            MUTUAL_TOML.format(folder=folder),
            TOKENS_TOML.format(folder=folder, user=USER),
        ]
    )


def _write_certificates(folder: Path, password: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server = authority.issue_cert("127.0.0.1", "localhost")
    chain = b"".join(blob.bytes() for blob in server.cert_chain_pems)
    (folder / "server.pem").write_bytes(_key(server, NoEncryption()) + chain)
    client = authority.issue_cert("client@headrace.test", common_name=USER)
    (folder / "client.pem").write_bytes(b"".join(blob.bytes() for blob in client.cert_chain_pems))
    (folder / "client.key").write_bytes(_key(client, BestAvailableEncryption(password.encode())))
    stranger = trustme.CA()
    stranger.cert_pem.write_to_path(str(folder / "other-ca.pem"))


def _key(certificate: trustme.LeafCert, encryption: KeySerializationEncryption) -> bytes:
    """The private key in the one form that Kafka reads."""
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def _tls(folder: Path) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        f"listener.name.{MUTUAL_TLS.lower()}.ssl.client.auth": "required",
    }


def _sasl(password: str) -> dict[str, str]:
    settings = {"sasl.enabled.mechanisms": ",".join(MECHANISMS)}
    logins = {
        "scram-sha-256": f"{KAFKA}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{KAFKA}.scram.ScramLoginModule required;",
        "plain": f'{KAFKA}.plain.PlainLoginModule required user_{USER}="{password}";',
        "oauthbearer": f"{KAFKA}.oauthbearer.OAuthBearerLoginModule required "
        f'unsecuredLoginStringClaim_sub="{USER}";',
    }
    for listener in (SASL_SSL, SASL_PLAINTEXT):
        for mechanism, login in logins.items():
            settings[f"listener.name.{listener.lower()}.{mechanism}.sasl.jaas.config"] = login
    return settings


def main() -> None:
    """Run a secured Apache Kafka until Ctrl-C, and print its address with TLS and SASL."""
    parser = argparse.ArgumentParser(prog="python -m tools.secured_kafka", description=main.__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for certificates and headrace.toml")
    parser.add_argument("--port", type=int, help="where it listens with TLS and SASL (default: a free one)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with SecuredKafka(options.folder.absolute(), port=options.port) as kafka:
            sys.stdout.write(f"apache kafka with TLS and SASL ready on {kafka.listeners[SASL_SSL]}\n")
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
