"""OAUTHBEARER: tokens of an identity provider, right and wrong, from a file and from a URL."""

import asyncio
import base64
import hmac
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Producer
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from headrace.broker.listeners import InvalidSetting
from headrace.broker.security.oauth import OAuthServer, TokenVerifier, check_source
from headrace.broker.security.sasl import Verification
from headrace.broker.security.scram import AuthenticationFailed
from headrace.broker.security.settings import OAuthSettings, SecuritySettings
from tests.broker.security.brokers import secure_broker

AUDIENCE, ISSUER = "kafka", "https://identity.example.com"


class Provider:
    """An identity provider."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._keys: dict[str, Any] = {}
        self.add_key("first")

    def add_key(self, key_id: str) -> None:
        self._keys[key_id] = ec.generate_private_key(ec.SECP256R1())
        keys = [
            {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": name, "alg": "ES256"}
            for name, key in self._keys.items()
        ]
        self.file.write_text(json.dumps({"keys": keys}))

    def token(self, key_id: str = "first", **claims: Any) -> str:
        body = {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "exp": time.time() + 3600} | claims
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(body, self._keys[key_id], algorithm="ES256", headers={"kid": key_id})


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path / "jwks.json")


def settings_of(provider: Provider, **more: Any) -> OAuthSettings:
    return OAuthSettings(**({"jwks": str(provider.file), "audience": AUDIENCE, "issuer": ISSUER} | more))


def log_in(verifier: TokenVerifier, token: str, header: str = "n,,") -> Any:
    step = OAuthServer(verifier).step(f"{header}\x01auth=Bearer {token}\x01\x01".encode())
    assert isinstance(step, Verification)
    return step.run()


def test_a_valid_token_names_its_user_and_its_end(provider: Provider) -> None:
    verifier = TokenVerifier(settings_of(provider))
    end = int(time.time()) + 100
    result = log_in(verifier, provider.token(exp=end))
    assert (result.principal, result.expires_at_ms) == ("User:alice", end * 1000)
    assert log_in(verifier, provider.token(), "n,a=alice,").principal == "User:alice"


def test_the_user_may_be_in_another_claim(provider: Provider) -> None:
    verifier = TokenVerifier(settings_of(provider, user_claim="client_id"))
    assert log_in(verifier, provider.token(client_id="shop")).principal == "User:shop"
    with pytest.raises(AuthenticationFailed, match="no claim 'client_id'"):
        log_in(verifier, provider.token())


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": time.time() - 3600},
        {"exp": None},
        {"aud": "other"},
        {"aud": None},
        {"iss": "https://evil.example.com"},
        {"sub": ""},
        {"nbf": time.time() + 3600},
    ],
    ids=lambda claims: next(iter(claims)),
)
def test_a_token_that_is_not_for_us_or_expired_is_refused(provider: Provider, claims: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationFailed):
        log_in(TokenVerifier(settings_of(provider)), provider.token(**claims))


def test_forged_signatures_are_refused(provider: Provider, tmp_path: Path) -> None:
    verifier = TokenVerifier(settings_of(provider))
    body = {"sub": "admin", "aud": AUDIENCE, "iss": ISSUER, "exp": time.time() + 100}
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    forged = [
        Provider(tmp_path / "other.json").token(),
        jwt.encode(body, None, algorithm="none", headers={"kid": "first"}),
        signed_with_a_public_key(body, provider.file.read_bytes()),
        jwt.encode(body, other, algorithm="RS256", headers={"kid": "first"}),
        jwt.encode(body, other, algorithm="RS256"),
        provider.token()[:-8] + "AAAAAAAA",
        "no.token.atall",
    ]
    for token in forged:
        with pytest.raises(AuthenticationFailed):
            log_in(verifier, token)


def signed_with_a_public_key(body: dict[str, Any], key: bytes) -> str:
    """What PyJWT refuses to make: a token whose secret everybody knows."""
    parts = [{"alg": "HS256", "typ": "JWT", "kid": "first"}, body]
    text = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    signature = base64.urlsafe_b64encode(hmac.digest(key, text, "sha256")).rstrip(b"=")
    return (text + b"." + signature).decode()


def test_a_symmetric_key_in_the_keys_is_not_used(provider: Provider) -> None:
    secret = {
        "kty": "oct",
        "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA",
        "kid": "shared",
        "alg": "HS256",
    }
    provider.file.write_text(json.dumps({"keys": [secret]}))
    body = {"sub": "admin", "aud": AUDIENCE, "iss": ISSUER, "exp": time.time() + 100}
    token = jwt.encode(
        body, b"secret-secret-secret-secret-secret", algorithm="HS256", headers={"kid": "shared"}
    )
    with pytest.raises(AuthenticationFailed, match="unknown key"):
        log_in(TokenVerifier(settings_of(provider)), token)


def test_a_new_key_is_found_but_not_looked_for_at_every_request(provider: Provider) -> None:
    now = 0.0
    verifier = TokenVerifier(settings_of(provider), now=lambda: now)
    log_in(verifier, provider.token())
    provider.add_key("second")
    now = 5.0
    with pytest.raises(AuthenticationFailed, match="unknown key 'second'"):
        log_in(verifier, provider.token("second"))
    now = 11.0
    assert log_in(verifier, provider.token("second")).principal == "User:alice"
    provider.file.unlink()
    now = 8000.0
    assert log_in(verifier, provider.token("second")).principal == "User:alice", "the old keys stay in use"


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,\x01\x01", b"n,,\x01auth=Basic abc\x01\x01", b"p,,\x01auth=Bearer a.b.c\x01\x01", b"\xff"],
)
def test_a_malformed_message_is_refused(provider: Provider, message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        OAuthServer(TokenVerifier(settings_of(provider))).step(message)


def test_a_user_cannot_act_as_another(provider: Provider) -> None:
    with pytest.raises(AuthenticationFailed, match="another user"):
        log_in(TokenVerifier(settings_of(provider)), provider.token(), "n,a=admin,")


@pytest.mark.parametrize(
    "source", ["http://identity.example.com/keys", "ftp://127.0.0.1/keys", "file:///etc/x"]
)
def test_keys_are_read_from_files_and_https_alone(source: str) -> None:
    with pytest.raises(InvalidSetting, match="https"):
        check_source(source)


def test_the_mechanism_needs_keys_and_an_audience() -> None:
    with pytest.raises(InvalidSetting, match="--oauth-jwks"):
        SecuritySettings(sasl_mechanisms=("OAUTHBEARER",))


@pytest.fixture
def url(provider: Provider) -> Iterator[str]:
    class Keys(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(provider.file.read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    thread.join()
    server.server_close()


def test_clients_write_with_tokens(provider: Provider, url: str, tmp_path: Path) -> None:
    security = {
        "sasl_mechanisms": ("OAUTHBEARER",),
        "oauth": settings_of(provider, jwks=url),
        "super_users": frozenset({"User:alice"}),
    }
    with secure_broker(tmp_path / "data", "SASL_PLAINTEXT", settings=security) as kafka:
        producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _: (provider.token(), time.time() + 3600),
            }
        )
        producer.produce("orders", b"tea")
        assert producer.flush(30) == 0
        assert asyncio.run(write_with_aiokafka(kafka.bootstrap, provider)) == 1


class Tokens(AbstractTokenProvider):
    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def token(self) -> str:
        return self._provider.token()


async def write_with_aiokafka(bootstrap: str, provider: Provider) -> int:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Tokens(provider),
    )
    async with producer:
        return int((await producer.send_and_wait("orders", b"cup")).offset)
