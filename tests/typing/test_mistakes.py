"""Mistakes in users' code that `mypy --strict` finds before anything runs."""

from pathlib import Path

import pytest
from mypy import api

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]

HEAD = """
from collections.abc import Iterator
from datetime import timedelta
from pyspark.sql import functions as F
from headrace import App, HeadraceError, postgres, queue, tumbling
from headrace.events import Aggregate, Event, EventStore

class Added(Event):
    product: str

class Cart(Aggregate):
    def add(self, product: str) -> Iterator[Event]:
        yield Added(product=product)

app = App("shop")
orders = app.stream("orders", "id string, at timestamp", event_time="at", watermark_delay="30s")
payments = app.stream("payments", "id string", event_time="at", watermark_delay=timedelta(seconds=30))
products = app.table("products", "id string, name string", key="id", history_retention="1 day")
revenue = app.view("revenue", key="id")
store = EventStore("127.0.0.1:9092")
"""
RIGHT = """
def right() -> None:
    joined = orders.join(payments, on="id", within=("0s", timedelta(minutes=5)), how="left")
    joined.join(products, on="id", delay="5 minutes").window(tumbling("1 minute"), by="id").agg(F.count("*"))
    app.table(revenue)
    app.job(into=[revenue, postgres("revenue", key="id")], late_topic="late", allowed_lateness="1 hour")
    store.execute(Cart, "1", Cart.add, product="tea")
"""
MISTAKES = {
    "a wrong keyword of a join of streams": 'orders.join(payments, on="id", withing="1 minute")',
    "a join of streams without within": 'orders.join(payments, on="id")',
    "an argument of another join": 'orders.join(payments, on="id", within="1s", delay="1s")',
    "a wrong kind of join": 'orders.join(products, on="id", how="right")',
    "a number for a duration": 'orders.deduplicate("id", within=5)',
    "a wrong literal": 'orders.window(tumbling("1 minute")).agg(F.count("*"), emit="close")',
    "a window that is text": 'orders.window("1 minute")',
    "a wrong keyword of a stream": 'app.stream("orders", "id string", lateness="1 minute")',
    "a wrong time unit": 'app.stream("orders", "id string", time_unit="seconds")',
    "a table without a key": 'app.table("products", "id string")',
    "a wrong output mode": 'app.job(into=revenue, output_mode="upsert")',
    "a wrong choice for errors": 'app.job(into=revenue, on_error="ignore")',
    "an output that is a name": 'app.job(into="revenue")',
    "an argument without its name": "app.job(revenue)",
    "a wrong keyword of a capture": 'app.capture("postgres://db/shop", tabels=["users"])',
    "a wrong keyword of a sink": 'postgres("revenue", keys="id")',
    "a wrong keyword of a queue": 'queue("orders", grup="mailer")',
    "a name that is not exported": "import headrace; headrace.Ap",
    "a wrong command name": 'store.execute(Cart, "1", Cart.ad, product="tea")',
    "a version that is text": 'store.execute(Cart, "1", Cart.add, product="tea", expected_version="3")',
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy says, by mistake; what it says of no mistake is under its line."""
    lines, owners = (HEAD + RIGHT).splitlines(), {}
    for number, (name, mistake) in enumerate(MISTAKES.items()):
        lines += [f"def mistake_{number}() -> None:", f"    {mistake}"]
        owners[len(lines)] = name
    file = tmp_path_factory.mktemp("typing") / "pipeline.py"
    file.write_text("\n".join(lines) + "\n")
    # With the settings of `make check`, which has left what mypy knows of Spark and Headrace in its cache.
    out, err, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", str(file)])
    assert not err
    said: dict[str, str] = {}
    for line in out.splitlines():
        number = int(line.split(":")[1])
        if ": error: " in line:
            said.setdefault(owners.get(number, f"line {number}: {lines[number - 1]}"), line)
    return said


def test_code_that_is_right_has_no_errors(found: dict[str, str]) -> None:
    assert {name: said for name, said in found.items() if name not in MISTAKES} == {}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(found: dict[str, str], mistake: str) -> None:
    assert mistake in found
