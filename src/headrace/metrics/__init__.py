"""Metrics and health of a process over HTTP, for Prometheus and for supervisors.

    families  what a metric is, samples of a scrape, and histograms of plain integers
    address   where the page is served
    server    the HTTP server: `/metrics`, `/health/live` and `/health/ready`

Each part of Headrace declares its own metrics: `broker/metrics.py`, `streams/metrics.py`,
`capture/metrics.py` and `events/metrics.py`. They count with plain integers, which a scrape reads. Only the
server imports prometheus_client.
"""

from headrace.metrics.address import MetricsAddress
from headrace.metrics.families import Histogram, Kind, Metric, Scrape

__all__ = ["Histogram", "Kind", "Metric", "MetricsAddress", "Scrape"]
