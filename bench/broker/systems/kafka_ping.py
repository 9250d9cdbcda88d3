"""Whether a broker responds to a Metadata request, the first request of every Kafka client."""

import socket
import struct

METADATA_1 = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)  # header without client id; no topics


def ping_kafka(connection: socket.socket) -> bool:
    """True when the broker names at least one broker."""
    connection.sendall(struct.pack(">i", len(METADATA_1)) + METADATA_1)
    with connection.makefile("rb") as answers:
        length = answers.read(4)
        if len(length) < 4:
            return False
        answer = answers.read(struct.unpack(">i", length)[0])
    _, brokers = struct.unpack_from(">ii", answer)
    return bool(brokers > 0)
