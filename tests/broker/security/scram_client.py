"""The client's side of SCRAM, as small as it can be; it also proves what it was never asked."""

import base64

from headrace.protocol.scram import ScramMechanism


def client_final(
    mechanism: ScramMechanism, password: str, bare: str, server_first: bytes, *, header: str = "n,,"
) -> bytes:
    """The final message of a client that knows the password."""
    fields = dict(field.split("=", 1) for field in server_first.decode().split(","))
    salted = mechanism.salted_password(password, base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = mechanism.sign(salted, b"Client Key")
    unsigned = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
    text = ",".join([bare, server_first.decode(), unsigned]).encode()
    signature = mechanism.sign(mechanism.stored_key(client_key), text)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unsigned},p={base64.b64encode(proof).decode()}".encode()
