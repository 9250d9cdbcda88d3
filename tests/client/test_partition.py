"""The partition of a key."""

from headrace.client.partition import murmur2


def test_keys_have_the_same_hashes_as_in_the_java_client() -> None:
    # From Kafka's own tests (UtilsTest.testMurmur2), without the sign.
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert {key: murmur2(key) for key in known} == {key: n & 0xFFFFFFFF for key, n in known.items()}
