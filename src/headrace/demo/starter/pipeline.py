"""The pipeline of the demo: a shop and its machines. Copy it, and run it with `headrace run pipeline.py`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, Rows, tumbling

app = App("demo")

orders = app.stream(
    "orders",
    "order_id string, product string, amount double, at timestamp",
    event_time="at",
    lateness="10 seconds",
)
payments = app.stream(
    "payments", "order_id string, paid double, paid_at timestamp", event_time="paid_at", lateness="10 seconds"
)
products = app.table("products", "product string, category string", key="product")
device_events = app.stream("device_events", "device string, temperature double, at timestamp")
paid_orders_stream = app.stream(
    "paid_orders",
    "order_id string, product string, amount double, at timestamp",
    event_time="at",
    lateness="5 seconds",
)


@app.job(into=app.topic("paid_orders", key="order_id"))
def paid_orders() -> Rows:
    """Every order with its payment, if that came within a minute."""
    return orders.join(payments, on="order_id", within="1 minute")


@app.job(into=app.view("revenue", key=["window_start", "category"]))
def revenue() -> Rows:
    """Revenue of each category of products in every five seconds, from what the other job wrote."""
    sold = paid_orders_stream.join(products, on="product", as_of="latest")
    sums = (F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("revenue"))
    return sold.window(tumbling("5 seconds"), by="category").agg(*sums)


@app.job(into=app.topic("alerts", key="device"))
def alerts() -> DataFrame:
    """Machines that run hot. What they send in a garbled form goes to `alerts.dead`."""
    return device_events.df.filter("temperature > 90")


if __name__ == "__main__":
    app.run()
