"""Reads the pages that a process serves for its metrics."""

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from headrace.metrics import MetricsAddress, Scrape
from tests.broker.processes import BrokerProcess

PREFIX = "headrace broker metrics on "


class MeasuredBroker(BrokerProcess):
    """A broker that serves its metrics on a free port."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder, "--metrics", "0", *options)
        self.page = ""

    def start(self) -> "MeasuredBroker":
        super().start()
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(PREFIX), line
        self.page = line.removeprefix(PREFIX).removesuffix("/metrics\n")
        return self


@dataclass
class FixedSource:
    """A source whose samples and health a test sets."""

    fill: Callable[[Scrape], None] = lambda _scrape: None
    broken: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def scrape(self, scrape: Scrape) -> None:
        self.fill(scrape)

    def faults(self) -> list[str]:
        return list(self.broken)

    def pending(self) -> list[str]:
        return list(self.missing)


FREE = MetricsAddress(port=0)


def get(url: str, **headers: str) -> tuple[int, str, str]:
    """The status, the content type and the text of a page."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as fault:
        with fault:
            return fault.code, fault.headers["Content-Type"], fault.read().decode()


Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(text: str) -> Samples:
    """The samples of a page in the text format, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, metric: str, **labels: str) -> float | None:
    """The value of a sample; None if there is none."""
    return samples.get((metric, frozenset(labels.items())))


def scraped(url: str) -> Samples:
    """The samples of a server's page."""
    status, _, text = get(f"{url}/metrics")
    assert status == 200, text
    return samples_of(text)
