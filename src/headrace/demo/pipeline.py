"""The pipeline of the demo: a shop and its machines. Copy it, and run it with `headrace run pipeline.py`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App

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
device_events = app.stream("device_events", "device string, temperature double, at timestamp")
paid_orders_stream = app.stream(
    "paid_orders",
    "order_id string, product string, amount double, at timestamp",
    event_time="at",
    lateness="5 seconds",
)


@app.job(into=app.topic("paid_orders", key="order_id"))
def paid_orders() -> DataFrame:
    """Every order with its payment, if that came within a minute."""
    order, payment = orders.df, payments.df
    within = F.expr("paid_at between at - interval 1 minute and at + interval 1 minute")
    joined = order.join(payment, (order.order_id == payment.order_id) & within)
    return joined.select(order.order_id, "product", "amount", "at", "paid", "paid_at")


@app.job(into=app.topic("revenue", key=["window_start", "product"]))
def revenue() -> DataFrame:
    """Revenue of each product in every five seconds, from what the other job wrote."""
    windows = paid_orders_stream.df.groupBy(F.window("at", "5 seconds"), "product")
    sums = windows.agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("revenue"))
    return sums.select(F.col("window.start").alias("window_start"), "product", "orders", "revenue")


@app.job(into=app.topic("alerts", key="device"))
def alerts() -> DataFrame:
    """Machines that run hot. What they send in a garbled form goes to `alerts.dead`."""
    return device_events.df.filter("temperature > 90")


if __name__ == "__main__":
    app.run()
