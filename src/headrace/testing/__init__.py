"""Test support: real brokers with temporary data on a free port, and runs of jobs on them.

`broker()` runs in a thread of the test and starts in milliseconds; a `BrokerProcess` can be killed.

>>> from headrace.testing import broker
>>> with broker() as kafka:
...     kafka.bootstrap.startswith("127.0.0.1:")
True

`run(job, {"orders": rows})` returns the rows that a job writes for the given input rows.

The pytest plugin of Headrace provides the fixture `headrace_broker`.
"""

from headrace.broker.process import BrokerProcess
from headrace.testing.embedded import EmbeddedBroker, broker
from headrace.testing.jobs import JobRows, run

__all__ = ["BrokerProcess", "EmbeddedBroker", "JobRows", "broker", "run"]
