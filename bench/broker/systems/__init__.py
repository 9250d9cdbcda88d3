"""The systems that are compared, each started by the benchmark itself on loopback."""

from bench.broker.systems.apache_kafka import KAFKA
from bench.broker.systems.headrace import HEADRACE
from bench.broker.systems.nats import NATS
from bench.broker.systems.redis import REDIS
from bench.broker.systems.system import System

SYSTEMS: dict[str, System] = {system.name: system for system in (HEADRACE, KAFKA, NATS, REDIS)}

__all__ = ["SYSTEMS", "System"]
