"""The dashboard and the alert rules name metrics that exist."""

import json
import re
from collections.abc import Iterator

import pytest

from headrace.metrics import Kind
from tests.metrics.prometheus import DEPLOY, RULES
from tools.metrics_table import PAGE, PARTS, page

METRICS = [metric for metrics in PARTS.values() for metric in metrics]


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


def test_the_documentation_has_every_metric() -> None:
    text = PAGE.read_text()
    assert text == page(text), "make reference writes the table again"


def test_names_are_unique() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert all(metric.doc.endswith(".") for metric in METRICS)
