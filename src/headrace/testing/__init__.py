"""Real brokers for tests, and jobs that are run on them: private, in a temporary folder, on a free port.

`broker()` runs in a thread of the test and is there in milliseconds; `BrokerProcess` can be killed.

>>> from headrace.testing import broker
>>> with broker() as kafka:
...     kafka.bootstrap.startswith("127.0.0.1:")
True

`run(job, {"orders": rows})` gives the rows that a job makes of others.

The pytest plugin that comes with Headrace gives the same as the fixture `headrace_broker`.
"""

from headrace.broker.process import BrokerProcess
from headrace.testing.embedded import EmbeddedBroker, broker
from headrace.testing.jobs import Rows, run

__all__ = ["BrokerProcess", "EmbeddedBroker", "Rows", "broker", "run"]
