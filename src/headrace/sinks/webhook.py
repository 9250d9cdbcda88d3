"""The output to a webhook: a CloudEvent for each row, signed, sent once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from headrace.durations import seconds_of
from headrace.errors import Misuse
from headrace.sinks.columns import check_columns
from headrace.sinks.errors import Unsuitable
from headrace.sinks.template import Template

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.sinks.sink import Place
    from headrace.sinks.webhook_target import WebhookTarget

TRIES: Final = 8
AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSink:
    """Rows to a receiver of CloudEvents; made by `webhook(…)`."""

    url: str = field(repr=False)
    """Addresses of webhooks are often secrets themselves."""
    name: str
    secret: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    type: str = ""
    subject: Template | None = None
    time: str = ""
    order_by: tuple[str, ...] = ()
    at_once: int = AT_ONCE
    timeout_s: float = 30.0
    tries: int = TRIES

    def open(self, place: Place) -> WebhookTarget:
        """Read what was sent before; the receiver hears of it with the first row."""
        import pyarrow as pa

        from headrace.sinks.webhook_target import WebhookTarget

        names = place.schema.names
        if self.subject is not None:
            self.subject.check(names)
        check_columns(self.name, filter(None, (*self.order_by, self.time)), names)
        if self.time and not pa.types.is_timestamp(place.schema.field(self.time).type):
            raise Unsuitable(f"{self.name}: time={self.time!r} is no column of timestamps: name one.")
        return WebhookTarget(self, place)


def webhook(
    url: str,
    *,
    secret: str | None = None,
    headers: Mapping[str, str] | None = None,
    type: str = "",  # noqa: A002  the word of CloudEvents
    subject: str = "",
    time: str = "",
    order_by: str | Sequence[str] = (),
    at_once: int = AT_ONCE,
    timeout: str = "30 seconds",
    tries: int = TRIES,
    name: str = "",
) -> WebhookSink:
    """Where each of a job's rows is posted as a CloudEvent: `into=webhook("https://…", secret=…)`.

    With a `secret`, messages are signed as Standard Webhooks says. `type` is the event's type (the job's
    name, unless one is given), `subject` a template, `time` the column with the event's time. Up to `at_once`
    messages are under way; those with the same `order_by` one after the other. A row that the receiver does
    not take in so many `tries` goes to the job's dead letters.

    >>> webhook("https://hooks.example.com/T0/secret").name
    'webhook hooks.example.com'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Misuse('webhook: the address is none: write webhook("https://host/path").')
    if at_once < 1 or tries < 1:
        raise Misuse("webhook: at_once and tries are at least 1.")
    return WebhookSink(
        url=url,
        name=f"webhook {name or parts.hostname}",
        secret=secret,
        headers=dict(headers or {}),
        type=type,
        subject=Template(subject, "subject") if subject else None,
        time=time,
        order_by=(order_by,) if isinstance(order_by, str) else tuple(order_by),
        at_once=at_once,
        timeout_s=seconds_of(timeout, "timeout"),
        tries=tries,
    )
