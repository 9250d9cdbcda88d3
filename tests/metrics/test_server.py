"""The HTTP server of metrics and health."""

import json
import socket

import pytest

from headrace.errors import Misuse
from headrace.metrics import Histogram, Kind, Metric, MetricsAddress, Scrape
from headrace.metrics.families import Summary
from headrace.metrics.server import MAX_REQUESTS, CannotServeMetrics, MetricsServer
from tests.metrics.pages import FREE, FixedSource, get, samples_of, scraped, value

SEEN = Metric(name="seen_total", kind=Kind.COUNTER, doc="Things seen.", labels=("place",))
TIME = Metric(name="work_seconds", kind=Kind.HISTOGRAM, doc="Time of work.")
PHASE = Metric(name="phase_seconds", kind=Kind.SUMMARY, doc="Time of a phase.")


def fill(scrape: Scrape) -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds)
    scrape.add(SEEN, 3, 'a "b"\n')
    scrape.add(TIME, histogram)
    scrape.add(PHASE, Summary(2, 0.5))


def test_prometheus_gets_its_text_format() -> None:
    with MetricsServer(FREE, FixedSource(fill)) as server:
        status, content_type, text = get(f"http://{server.address}/metrics")
    assert (status, content_type.partition(";")[0]) == (200, "text/plain")
    samples = samples_of(text)
    assert value(samples, "seen_total", place='a "b"\n') == 3
    assert value(samples, "phase_seconds_sum") == 0.5
    assert [value(samples, "work_seconds_bucket", le=le) for le in ("0.1", "1.0", "+Inf")] == [2, 3, 4]
    assert "process_cpu_seconds_total" in text


def test_a_client_that_asks_for_openmetrics_gets_it() -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    with MetricsServer(FREE, FixedSource(fill)) as server:
        _, content_type, text = get(f"http://{server.address}/metrics", Accept=accept)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("source", "live", "ready"),
    [
        (FixedSource(), 200, 200),
        (FixedSource(missing=("the logs are recovered",)), 200, 503),
        (FixedSource(broken=("the disk failed",)), 503, 503),
    ],
)
def test_health_says_whether_to_wait_or_to_restart(source: FixedSource, live: int, ready: int) -> None:
    with MetricsServer(FREE, source) as server:
        pages = [get(f"http://{server.address}/health/{name}") for name in ("live", "ready")]
    assert [status for status, _, _ in pages] == [live, ready]
    reasons = json.loads(pages[1][2]).get("reasons", [])
    assert reasons == [*source.broken, *source.missing]


def test_an_unknown_page_names_those_that_exist() -> None:
    with MetricsServer(FREE, FixedSource()) as server:
        status, _, text = get(f"http://{server.address}/")
    assert status == 404
    assert "/metrics" in text


def test_a_page_that_cannot_be_collected_is_an_error_and_the_server_goes_on() -> None:
    source = FixedSource(lambda _scrape: 1 / 0)  # type: ignore[arg-type,return-value]
    with MetricsServer(FREE, source) as server:
        assert get(f"http://{server.address}/metrics")[0] == 500
        source.fill = fill
        assert scraped(f"http://{server.address}")


def test_clients_that_send_nothing_keep_no_more_than_a_few_threads() -> None:
    with MetricsServer(FREE, FixedSource(fill)) as server:
        quiet = [
            socket.create_connection((server.address.host, server.address.port)) for _ in range(MAX_REQUESTS)
        ]
        with socket.create_connection((server.address.host, server.address.port), timeout=60) as refused:
            assert refused.recv(1) == b""
        quiet[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert quiet[0].recv(8) == b"HTTP/1.0"
        for each in quiet:
            each.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [("9404", "127.0.0.1:9404"), ("localhost:1", "localhost:1"), ("[::1]:9404", "[::1]:9404")],
)
def test_metrics_are_served_on_loopback(text: str, shown: str) -> None:
    assert str(MetricsAddress.parse(text)) == shown


@pytest.mark.parametrize("text", ["0.0.0.0:9404", "[::]:9404", "10.0.0.7:9404", "metrics.example:9404"])
def test_other_addresses_must_be_allowed(text: str) -> None:
    with pytest.raises(Misuse, match="--metrics-allow-remote"):
        MetricsAddress.parse(text)
    assert str(MetricsAddress.parse(text, allow_remote=True)) == text


@pytest.mark.parametrize("text", ["", "http", "127.0.0.1", "127.0.0.1:65536", "a:b:1", "-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="is not an address for metrics"):
        MetricsAddress.parse(text)


def test_a_port_in_use_is_named() -> None:
    with MetricsServer(FREE, FixedSource()) as server, pytest.raises(CannotServeMetrics, match="in use"):
        MetricsServer(server.address, FixedSource())
