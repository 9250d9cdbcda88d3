"""The application that outgrows its machine: nothing in it says where it runs."""

from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App

app = App("shop")

orders = app.stream(
    "orders",
    "number long, product string, amount long, at timestamp",
    event_time="at",
    watermark_delay="10 minutes",
    max_records=2_000,
)
large = app.stream("large_orders", "number long, product string, amount long, at timestamp")


@app.job(into=app.topic("large_orders", key="product", partitions=3))
def large_orders():
    """Orders of 500 and more."""
    return orders.df.filter("amount >= 500")


@app.job(into=app.topic("taxed", key="number", partitions=3))
def taxed():
    """What of each large order goes to the treasury: a job that reads what another writes."""
    return large.df.select("number", (F.col("amount") * 19).alias("cents"))


@app.job(into=app.topic("revenue", key=("minute", "product"), partitions=3))
def revenue():
    """Revenue of each product, minute by minute."""
    by_minute = orders.df.groupBy(F.window("at", "1 minute"), "product")
    sums = by_minute.agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
    return sums.select(F.unix_timestamp("window.start").alias("minute"), "product", "revenue", "orders")
