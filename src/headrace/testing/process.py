"""A broker in a process of its own: one that can be killed, to see what survives."""

from headrace.broker.process import READY, BrokerDidNotStart, BrokerProcess

__all__ = ["READY", "BrokerDidNotStart", "BrokerProcess"]
