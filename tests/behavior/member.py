"""A group member in a process of its own, for tests that kill it.

`python -m tests.behavior.member LIBRARY BOOTSTRAP GROUP TOPIC` joins, prints one line when it has
partitions, and goes on polling until it is killed.
"""

import sys

from tests.behavior.clients import connect
from tests.behavior.clients.contract import ConsumerOptions

# The least that Apache Kafka accepts by default (group.min.session.timeout.ms).
SESSION_TIMEOUT_MS = 6_000


def main(library: str, bootstrap: str, group: str, topic: str) -> None:
    """Join the group and poll for ever."""
    options = ConsumerOptions(group=group, session_timeout_ms=SESSION_TIMEOUT_MS)
    consumer = connect(library, bootstrap).consumer(options)
    consumer.subscribe(topic)
    while not consumer.assignment():
        consumer.poll(0.1)
    print("joined", flush=True)
    while True:
        consumer.poll(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
