"""SCRAM on the client's side: the examples of the RFCs, and servers that do not keep to them."""

import pytest

from headrace.protocol.scram import ScramClient, ScramFailed

RFC_7677_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def rfc_7677() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")


def test_the_exchange_of_rfc_7677() -> None:
    client = rfc_7677()
    assert client.first_message() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final_message(RFC_7677_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_each_exchange_has_another_nonce() -> None:
    messages = {ScramClient("SCRAM-SHA-512", "a", "b").first_message() for _ in range(100)}
    assert len(messages) == 100


def test_a_name_with_commas_and_equals_signs_is_escaped() -> None:
    client = ScramClient("SCRAM-SHA-256", "a=b,c", "p", nonce="n")
    assert client.first_message() == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (RFC_7677_FIRST.replace(b"rOpr", b"sOpr"), "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (RFC_7677_FIRST.replace(b"4096", b"4095"), "iterations"),
        (RFC_7677_FIRST.replace(b"4096", b"99999999999999"), "iterations"),
        (RFC_7677_FIRST.replace(b"4096", "²".encode()), "iterations"),
        (RFC_7677_FIRST.replace(b"W22Z", b"W!2Z"), "base64"),
        (b"m=ext," + RFC_7677_FIRST, "has no r, s, i"),
        (b"", "has no r, s, i"),
        (b"\xff", "UTF-8"),
    ],
)
def test_a_first_message_that_is_wrong_gets_no_proof(message: bytes, problem: str) -> None:
    with pytest.raises(ScramFailed, match=problem):
        rfc_7677().final_message(message)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"v=AAAATRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "does not prove"),
        (b"e=invalid-proof", "refused the proof: invalid-proof"),
        (b"v=", "does not prove"),
        (b"x=", "has no v"),
    ],
)
def test_a_server_that_does_not_know_the_password_is_noticed(message: bytes, problem: str) -> None:
    client = rfc_7677()
    client.final_message(RFC_7677_FIRST)
    with pytest.raises(ScramFailed, match=problem):
        client.verify(message)


def test_a_proof_before_the_exchange_is_none() -> None:
    with pytest.raises(ScramFailed, match="does not prove"):
        rfc_7677().verify(b"v=")
