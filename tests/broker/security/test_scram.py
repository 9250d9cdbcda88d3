"""SCRAM as the RFCs say it, and what an attacker would try."""

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.security.scram import (
    AuthenticationFailed,
    ClientFirst,
    ScramCredential,
    ScramExchange,
    decoy_credential,
    read_client_first,
)
from headrace.protocol.scram import ScramMechanism
from tests.broker.security.scram_client import client_final

SHA_256 = ScramMechanism.SHA_256


def credential(password: str = "pencil", mechanism: ScramMechanism = SHA_256) -> ScramCredential:
    return ScramCredential.from_password(mechanism, password, iterations=4096)


def exchange(password: str = "pencil", mechanism: ScramMechanism = SHA_256) -> ScramExchange:
    first = read_client_first(b"n,,n=alice,r=abc")
    return ScramExchange(mechanism, first, credential(password, mechanism), server_nonce="XYZ")


def test_the_example_of_rfc_7677_is_answered_as_it_says() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = ScramCredential.from_salted(SHA_256, SHA_256.salted_password("pencil", salt, 4096), salt, 4096)
    first = read_client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    scram = ScramExchange(SHA_256, first, stored, server_nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert scram.server_first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert scram.finish(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_the_right_password_is_accepted_and_a_wrong_one_is_not(mechanism: ScramMechanism) -> None:
    right = exchange("tea", mechanism)
    assert right.finish(client_final(mechanism, "tea", "n=alice,r=abc", right.server_first)).startswith(b"v=")
    wrong = exchange("tea", mechanism)
    with pytest.raises(AuthenticationFailed, match="wrong password"):
        wrong.finish(client_final(mechanism, "cup", "n=alice,r=abc", wrong.server_first))


def test_a_proof_for_another_nonce_is_refused() -> None:
    recorded = exchange()
    final = client_final(SHA_256, "pencil", "n=alice,r=abc", recorded.server_first)
    for other in (final.replace(b"r=abcXYZ", b"r=abc"), final.replace(b"r=abcXYZ", b"r=abcXYZW")):
        with pytest.raises(AuthenticationFailed, match="nonce"):
            exchange().finish(other)


def test_a_nonce_that_the_client_signed_itself_is_refused() -> None:
    scram = exchange()
    forged = scram.server_first.replace(b"r=abcXYZ", b"r=abcMINE")
    with pytest.raises(AuthenticationFailed, match="nonce"):
        scram.finish(client_final(SHA_256, "pencil", "n=alice,r=abc", forged))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=alice",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,m=must,n=alice,r=abc",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"n,,n=\xff,r=abc",
    ],
)
def test_a_bad_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        read_client_first(message)


def test_a_user_name_may_have_commas_and_equals_signs() -> None:
    assert read_client_first(b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=abc").user == "a,b=c"


def test_the_channel_binding_must_be_that_of_the_first_message() -> None:
    scram = exchange()
    final = client_final(SHA_256, "pencil", "n=alice,r=abc", scram.server_first, header="y,,")
    with pytest.raises(AuthenticationFailed, match="channel binding"):
        scram.finish(final)


@given(st.binary(max_size=200))
def test_no_bytes_are_accepted_or_crash(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        exchange().finish(message)
    with contextlib.suppress(AuthenticationFailed):
        assert isinstance(read_client_first(message), ClientFirst)


def test_a_user_who_does_not_exist_has_always_the_same_salt_and_no_password() -> None:
    decoys = [decoy_credential(SHA_256, "nobody", b"secret") for _ in range(2)]
    assert decoys[0].salt == decoys[1].salt != decoy_credential(SHA_256, "other", b"secret").salt
    assert not decoys[0].verify(SHA_256, "")


def test_a_credential_does_not_print_its_keys() -> None:
    assert "stored_key" not in repr(credential())
