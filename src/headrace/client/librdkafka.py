"""The configuration of librdkafka's clients. Every client of confluent-kafka in Headrace is created with it.

    producer = Producer(client_config("production://kafka-1:9094", {"linger.ms": 5}))

Apart from `bootstrap.servers` it holds what the security profile of the cluster says. The configuration has
secrets in it: pass it to a client, and do not keep, print or send it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.client.bootstrap import PLAINTEXT, Bootstrap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.security import Security

SILENT: Final = logging.Logger("librdkafka", level=logging.CRITICAL + 1)
"""librdkafka would log to standard error; relevant errors are raised."""
OURS: Final = ("sasl.oauthbearer.", "https.")
"""Options that librdkafka does not get: tokens come from `headrace.client.oauth`, as for the raw client."""


def client_config(bootstrap: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The configuration of a client of the cluster that `bootstrap` names, with its security profile."""
    cluster = Bootstrap.of(bootstrap)
    return {"bootstrap.servers": cluster.servers, **_secured(cluster.profile), **(more or {})}


def _secured(profile: str) -> dict[str, Any]:
    if profile == PLAINTEXT:
        return {}
    from headrace.client.security import resolve

    security = resolve(profile)
    given = {name: value for name, value in security.options.items() if not name.startswith(OURS)}
    if security.uses_sasl and security.mechanism == "OAUTHBEARER":
        return {**given, "oauth_cb": lambda _: _token(security)}
    return given


def _token(security: Security) -> tuple[str, float, str, dict[str, str]]:
    """A token in the form that confluent-kafka takes."""
    from headrace.client.oauth import extensions, get_token

    token = get_token(security)
    return token.text, token.expires_s, "", extensions(security)


def produce(producer: Any, topic: str, **record: Any) -> None:
    """Pass a record to a producer, and wait while its queue is full."""
    while True:
        try:
            producer.produce(topic, **record)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return
