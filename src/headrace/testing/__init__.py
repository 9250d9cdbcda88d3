"""Real brokers for tests: private, in a temporary folder, on a free port.

`broker()` runs in a thread of the test and is there in milliseconds; `BrokerProcess` can be killed.

>>> from headrace.testing import broker
>>> with broker() as kafka:
...     kafka.bootstrap.startswith("127.0.0.1:")
True

The pytest plugin that comes with Headrace gives the same as the fixture `headrace_broker`.
"""

from headrace.testing.embedded import EmbeddedBroker, broker
from headrace.testing.process import BrokerProcess

__all__ = ["BrokerProcess", "EmbeddedBroker", "broker"]
