"""A small shop to start from. Run it with `headrace run pipeline.py`, test it with `pytest`."""

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, Rows, queue, tumbling
from headrace.events import Aggregate, Event, Rejected

app = App("NAME")

# The topics that the jobs read; `traffic.py` writes them. With `partitions` they are created if they do not
# exist. `app.capture(…)` captures the tables of a PostgreSQL database.
orders = app.stream(
    "orders",
    "order_id string, product string, amount double, at timestamp",
    event_time="at",
    watermark_delay="2 seconds",
    partitions=1,
)
payments = app.stream(
    "payments",
    "order_id string, paid double, paid_at timestamp",
    event_time="paid_at",
    watermark_delay="2 seconds",
    partitions=1,
)
products = app.table("products", "product string, category string", key="product", partitions=1)
device_events = app.stream("device_events", "device string, temperature double, at timestamp", partitions=1)


@app.job(into=app.topic("order_status", key="order_id"))
def order_status() -> Rows:
    """Every order with its payment, or as unpaid after 10 seconds."""
    return orders.join(payments, on="order_id", within="10 seconds", how="left")


@app.job(into=app.view("revenue", key=["window_start", "category"]), late_topic="revenue.late")
def revenue() -> Rows:
    """Revenue per product category, every 10 seconds; `headrace changes revenue` shows it."""
    sold = orders.join(products, on="product", as_of="latest")
    sums = (F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("revenue"))
    return sold.window(tumbling("10 seconds"), by="category").agg(*sums)


@app.job(into=app.topic("alerts", key="device"))
def alerts() -> DataFrame:
    """Machines that are too hot. Readings that cannot be parsed become dead letters in `alerts.dead`."""
    return device_events.df.filter("temperature > 90")


class Stopped(Event):
    reason: str


class Started(Event):
    pass


class Machine(Aggregate):
    """Can be stopped: `EventStore("NAME").execute(Machine, "press-7", "stop", reason="hot")`."""

    def __init__(self) -> None:
        self.runs = True

    def stop(self, reason: str) -> Iterator[Event]:
        if not self.runs:
            raise Rejected("it has been stopped already")
        yield Stopped(reason=reason)

    def start(self) -> Iterator[Event]:
        yield Started()

    def on_stopped(self, _: Stopped) -> None:
        self.runs = False

    def on_started(self, _: Started) -> None:
        self.runs = True


def remind(broker: str | None = None) -> Iterator[str]:
    """A queue of unpaid orders; each order goes to one worker."""
    for message in queue("order_status", group="reminders", broker=broker):
        if message.json().get("paid") is None:
            yield message.json()["order_id"]


if __name__ == "__main__":
    app.run()
