"""Write the table of all metrics into docs/monitoring.md from the code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.metrics import METRICS as BROKER
from headrace.capture.metrics import METRICS as CAPTURE
from headrace.events.handlers import METRICS as EVENTS
from headrace.streams.metrics import METRICS as JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.metrics import Metric

PAGE = Path(__file__).parents[1] / "docs/monitoring.md"
MARK = "<!-- Generated from the code by `make reference`: change the code, not what follows. -->\n"
PARTS = {"Broker": BROKER, "Jobs": JOBS, "Captures": CAPTURE, "Event stores": EVENTS}


def tables() -> str:
    """The tables of all parts."""
    return "\n".join(f"### {title}\n\n" + "".join(_rows(metrics)) for title, metrics in PARTS.items())


def _rows(metrics: tuple[Metric, ...]) -> Iterator[str]:
    yield "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.doc} |\n"


def page(text: str) -> str:
    """The page with the tables in place of those that it has."""
    return text.partition(MARK)[0] + MARK + "\n" + tables()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print("wrote", PAGE)
