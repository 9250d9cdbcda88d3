"""The pipeline of the demo: six jobs, an event-sourced stock, and a queue of mails.

`headrace demo` runs it with PostgreSQL, Redis and a mail server; docs/demo.md explains it.
"""

import os
import smtplib
from collections.abc import Iterator
from email.message import EmailMessage

from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import (
    App,
    Rows,
    TableView,
    correct_clock,
    hopping,
    postgres,
    queue,
    redis,
    search,
    sliding,
    tumbling,
)
from headrace.events import Aggregate, Event, EventStore, Rejected

app = App("shop")

# Inputs. Tables of a PostgreSQL are captured, and its outbox, which brings the orders; payments and
# clicks are written by others. Amounts are in cents.
DATABASE = os.environ["HEADRACE_POSTGRES"]
app.capture(DATABASE, name="shop", tables=["customers", "products", "categories"], outbox="outbox")
CUSTOMER = "id long, name string, city string, since timestamp"
customers = app.table("shop.public.customers", CUSTOMER, key="id", valid_from="since")
products = app.table("shop.public.products", "id long, name string, category long, price long", key="id")
categories = app.table("shop.public.categories", "id long, title string", key="id")
ORDER = "order_id string, customer long, email string, product long, amount long, at timestamp"
orders = app.stream("orders", ORDER, event_time="at", watermark_delay="30 seconds", partitions=4)
PAYMENT = "order_id string, paid long, paid_at timestamp"
payments = app.stream("payments", PAYMENT, event_time="paid_at", watermark_delay="30 seconds", partitions=4)
CLICK = "click long, customer long, product long, occurred timestamp, sent timestamp, received timestamp"
clock = correct_clock("occurred", "sent", "received")  # phones do not know what time it is
clicks = app.stream("clicks", CLICK, event_time=clock, watermark_delay="30 seconds", partitions=4)
BY_MINUTE = ("window_start", "product")


@app.job(into=[postgres("revenue", key=BY_MINUTE), app.view("revenue", key=BY_MINUTE)])
def revenue() -> Rows:
    """Revenue per product and minute."""
    sums = (F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
    return orders.window(tumbling("1 minute"), by="product").agg(*sums)


@app.job(into=app.view("hot_products", key=BY_MINUTE), late_topic="hot_products.late")
def hot_products() -> Rows:
    """Clicks per product in the last five minutes, updated every minute."""
    looks = F.count("*").alias("clicks")
    return clicks.window(hopping("5 minutes", every="1 minute"), by="product").agg(looks)


@app.job(into=[redis("spend:{customer}"), app.view("spend", key="customer")])
def spend() -> Rows:
    """The amount that a customer spent in the ten minutes before each order."""
    return orders.window(sliding("10 minutes"), by="customer").agg(F.sum("amount").alias("spent"))


@app.job(into=[postgres("order_status", key="order_id"), app.topic("order_status", key="order_id")])
def order_status() -> Rows:
    """Every order with its payment, or as unpaid after three minutes."""
    return orders.join(payments, on="order_id", within=("0 seconds", "3 minutes"), how="left")


@app.job(into=app.topic("visits", key="customer"))
def visits() -> Rows:
    """Every click with the customer's profile at that time."""
    return clicks.join(customers, on={"customer": "id"}, delay="30 seconds")


INDEX = search("products", key="id", text=["name", "title"])


@app.job(into=[INDEX, redis("product:{id}"), app.view("catalogue", key="id")])
def catalogue() -> TableView:
    """Each product with the current title of its category."""
    return products.join(categories, on={"category": "id"}, how="inner")


class Restocked(Event):
    pieces: int


class Reserved(Event):
    order: str


class Stock(Aggregate):
    """The stock of one product. A product that is sold out cannot be reserved."""

    def __init__(self) -> None:
        self.pieces = 0

    def restock(self, pieces: int) -> Iterator[Event]:
        yield Restocked(pieces=pieces)

    def reserve(self, order: str) -> Iterator[Event]:
        if self.pieces == 0:
            raise Rejected("sold out")
        yield Reserved(order=order)

    def on_restocked(self, event: Restocked) -> None:
        self.pieces += event.pieces

    def on_reserved(self, _: Reserved) -> None:
        self.pieces -= 1


COMMITTED = {"share.isolation.level": "read_committed"}


def keep_stock(broker: str) -> None:
    """Reserve one item for each order. A repeated command with the same id has no effect."""
    with EventStore("shop", broker=broker, partitions=1) as store:
        for message in queue("orders", group="stock", broker=broker, settings=COMMITTED):
            order, product = message.json()["order_id"], str(message.json()["product"])
            try:
                store.execute(Stock, product, "reserve", order=order, command_id=order)
            except Rejected:
                store.execute(Stock, product, "restock", pieces=25, command_id=f"{order}-restock")
                store.execute(Stock, product, "reserve", order=order, command_id=f"{order}-again")


def send_mails(broker: str, smtp: str) -> None:
    """Send a mail for every order. An order with an invalid address becomes a dead letter."""
    for message in queue("order_status", group="mailer", broker=broker, settings=COMMITTED):
        order = message.json()
        mail = EmailMessage()
        mail["From"], mail["To"] = "shop@shop.example", order["email"]
        mail["Message-ID"] = f"<{order['order_id']}@shop.example>"
        mail["Subject"] = "Thank you for your payment" if order.get("paid") else "Your order is not paid yet"
        mail.set_content(f"Order {order['order_id']}: {order['amount'] / 100:.2f}")
        try:
            with smtplib.SMTP(smtp) as server:
                server.send_message(mail)
        except smtplib.SMTPRecipientsRefused:
            message.reject()


if __name__ == "__main__":
    app.run()
