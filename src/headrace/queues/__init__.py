"""Queues: each message of a topic is delivered to one of many workers, until one of them accepts it.

    for message in queue("orders", group="mailer"):
        send_mail(message.json())          # accepted when the body ends, released when it raises

The same with `async for`. A queue is a share group (KIP-932): other share consumers can be members of the
group, and it works with Apache Kafka 4.2 or later as well.
"""

from headrace.queues.message import Message, deliver_at, deliver_in
from headrace.queues.queue import Queue, queue

__all__ = ["Message", "Queue", "deliver_at", "deliver_in", "queue"]
