"""Queues: messages one by one, each to one of many workers, gone when it is done.

    for message in queue("orders", group="mailer"):
        send_mail(message.json())          # accepted when the body ends, given back when it raises

The same with `async for`. A queue is a share group (KIP-932) on a topic: any client of those can be beside
this one, and it works on Apache Kafka 4.2 or later as well.
"""

from headrace.queues.delay import deliver_at, deliver_in
from headrace.queues.message import Message
from headrace.queues.queue import Queue, queue

__all__ = ["Message", "Queue", "deliver_at", "deliver_in", "queue"]
