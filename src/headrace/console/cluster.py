"""Brokers, features of the cluster, and transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from kio.schema.share_group_describe.v1 import ShareGroupDescribeRequest

from headrace.client import transactions
from headrace.client.topics import partition_sizes

if TYPE_CHECKING:
    from headrace.cli.session import BrokerSession
    from headrace.client.transactions import Transaction
    from headrace.console.app import Context

MAX_UNHEALTHY: Final = 200


def read_features(session: BrokerSession) -> dict[str, Any]:
    """What the cluster can do: the page hides the rest."""
    names = set(session.cluster.topics())
    return {
        "share_groups": session.cluster.any().serves(ShareGroupDescribeRequest),
        "headrace": any(name.startswith("headrace.") for name in names),
    }


def list_brokers(context: Context) -> dict[str, Any]:
    """The brokers, the partitions that they lead and keep, and partitions that lack replicas."""
    session = context.session
    began = time.perf_counter()
    found = session.request(lambda: session.admin.list_topics(timeout=session.timeout_s), "list its brokers")
    latency_ms = (time.perf_counter() - began) * 1000
    leads: dict[int, int] = {}
    keeps: dict[int, int] = {}
    unhealthy: list[dict[str, Any]] = []
    partitions = 0
    for name, topic in sorted(found.topics.items()):
        for number, place in sorted(topic.partitions.items()):
            partitions += 1
            leads[place.leader] = leads.get(place.leader, 0) + 1
            for broker in place.replicas:
                keeps[broker] = keeps.get(broker, 0) + 1
            if place.leader < 0 or len(place.isrs) < len(place.replicas):
                problem = "offline" if place.leader < 0 else "under-replicated"
                unhealthy.append({"topic": name, "partition": number, "problem": problem})
    brokers = [
        {
            "id": broker.id,
            "address": f"{broker.host}:{broker.port}",
            "controller": broker.id == found.controller_id,
            "leads": leads.get(broker.id, 0),
            "replicas": keeps.get(broker.id, 0),
        }
        for broker in sorted(found.brokers.values(), key=lambda broker: broker.id)
    ]
    return {
        "cluster_id": found.cluster_id,
        "brokers": brokers,
        "topics": len(found.topics),
        "partitions": partitions,
        "unhealthy": unhealthy[:MAX_UNHEALTHY],
        "latency_ms": _rounded(latency_ms),
    }


def _rounded(latency_ms: float) -> float:
    """In steps, so that the document changes only when the latency does."""
    return 1.0 if latency_ms < 5 else float(round(latency_ms, -1))


def topic_sizes(session: BrokerSession, topic: str, partitions: list[int]) -> dict[int, int]:
    """The size of each partition in bytes; empty if the brokers do not say, or the user may not know."""
    from headrace.client.errors import RequestRefused

    try:
        return partition_sizes(session.cluster, topic, partitions)
    except RequestRefused:
        return {}


def list_transactions(context: Context) -> dict[str, Any]:
    """The transactional ids; those with an open transaction first, the oldest of them at the top."""
    found = transactions.list_transactions(context.session.cluster)
    ordered = sorted(found, key=_age_order)
    return {
        "total": len(found),
        "transactions": [
            {
                "id": each.transactional_id,
                "state": each.state,
                "producer_id": each.producer_id,
                "epoch": each.producer_epoch,
                "timeout_s": each.timeout.total_seconds(),
                "started": each.started,
                "partitions": [f"{topic}/{number}" for topic, number in each.partitions],
            }
            for each in ordered[:500]
        ],
    }


def _age_order(transaction: Transaction) -> tuple[bool, float, str]:
    started_s = 0.0 if transaction.started is None else transaction.started.timestamp()
    return transaction.started is None, started_s, transaction.transactional_id


def abort_transaction(context: Context, _: dict[str, Any]) -> dict[str, Any]:
    """Abort an open transaction, and fence its producer."""
    transactional_id = context.path["transactional_id"]
    transactions.require_open(context.session.cluster, transactional_id)
    transactions.abort_transaction(context.session.cluster, transactional_id)
    return {"aborted": transactional_id}
