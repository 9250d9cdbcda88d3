"""The dashboard and the alert rules name metrics that exist."""

import json
import re
from collections.abc import Iterator

import pytest

from headrace.broker.metrics import METRICS as BROKER
from headrace.capture.metrics import METRICS as CAPTURE
from headrace.events.metrics import METRICS as EVENTS
from headrace.metrics import Kind
from headrace.streams.metrics import METRICS as JOBS
from tests.metrics.prometheus import DEPLOY, RULES

METRICS = (*BROKER, *JOBS, *CAPTURE, *EVENTS)


def series() -> Iterator[str]:
    for metric in METRICS:
        yield metric.name
        if metric.kind in (Kind.HISTOGRAM, Kind.SUMMARY):
            yield from (f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))


def expressions() -> list[str]:
    dashboards = (json.loads(file.read_text()) for file in (DEPLOY / "grafana").glob("*.json"))
    panels = (panel for dashboard in dashboards for panel in dashboard["panels"])
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = re.findall(r"expr: (.*)", RULES.read_text())
    assert len(queries) > 20
    assert len(rules) > 10
    return [*queries, *rules]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_uses_only_metrics_that_exist(expression: str) -> None:
    named = set(re.findall(r"\b(?:kafka|headrace)_\w+", expression))
    assert named <= set(series())


def test_names_are_unique() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert all(metric.doc.endswith(".") for metric in METRICS)
