"""A real broker for tests, in milliseconds: private, in a temporary folder, on a free port.

>>> from headrace.testing import broker
>>> with broker() as kafka:
...     kafka.bootstrap.startswith("127.0.0.1:")
True

The pytest plugin that comes with Headrace gives the same as the fixture `headrace_broker`.
"""

from headrace.testing.embedded import EmbeddedBroker, broker

__all__ = ["EmbeddedBroker", "broker"]
