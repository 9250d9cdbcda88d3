"""The PostgreSQL database of the demo's shop.

While the database is down, statements wait and are repeated; all statements are idempotent.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.rows import tuple_row

from headrace.demo.mail_server import REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import LiteralString

T = TypeVar("T")

CATEGORIES: Final = ("Tea", "China", "Kitchen", "Sale")
PRODUCTS: Final = {
    "Green tea": 1,
    "Black tea": 1,
    "Mint tea": 1,
    "Tea cup": 2,
    "Sugar bowl": 2,
    "Iron pot": 3,
    "Kettle": 3,
    "Tray": 4,
}
"""Each with its category."""
CUSTOMERS: Final = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jon", "Kim", "Leo")
UNREACHABLE: Final = "Leo"
CITIES: Final = ("Rome", "Oslo", "Lyon", "Bern", "Kyiv")
AGAIN_S: Final = 0.2

_TABLES: Final = """
CREATE TABLE categories (id bigint PRIMARY KEY, title text NOT NULL);
CREATE TABLE products (id bigint PRIMARY KEY, name text NOT NULL, category bigint NOT NULL,
                       price bigint NOT NULL);
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, city text NOT NULL,
                        since timestamptz NOT NULL);
CREATE TABLE orders (order_id text PRIMARY KEY, customer bigint NOT NULL, email text NOT NULL,
                     product bigint NOT NULL, amount bigint NOT NULL, at timestamptz NOT NULL);
CREATE TABLE outbox (number bigserial PRIMARY KEY, topic text NOT NULL, key text, value text);
"""
_ORDER: Final = (
    "INSERT INTO orders VALUES (%(order_id)s, %(customer)s, %(email)s, %(product)s, %(amount)s, %(at)s) "
    "ON CONFLICT DO NOTHING"
)
_MESSAGE: Final = "INSERT INTO outbox (topic, key, value) VALUES ('orders', %s, %s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopOrder:
    """A row of the table of orders."""

    order_id: str
    customer: int
    email: str
    product: int
    amount: int
    at: datetime


class ShopDatabase:
    """A connection to the shop's database, which is reopened when it is lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url)

    def create_shop(self, at: datetime) -> None:
        """Create the tables with their initial rows."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(_TABLES)
            cursor.executemany("INSERT INTO categories VALUES (%s, %s)", list(enumerate(CATEGORIES, 1)))
            cursor.executemany(
                "INSERT INTO products VALUES (%s, %s, %s, 500)",
                [(number, name, category) for number, (name, category) in enumerate(PRODUCTS.items(), 1)],
            )
            cursor.executemany(
                "INSERT INTO customers VALUES (%s, %s, %s, %s)",
                [(number, name, CITIES[0], at) for number, name in enumerate(CUSTOMERS, 1)],
            )

    def place(self, order: ShopOrder) -> None:
        """Insert an order and its outbox message in one transaction; idempotent."""
        document = {**asdict(order), "at": order.at.isoformat()}

        def write() -> None:
            with self._connection.transaction():
                if self._connection.execute(_ORDER, asdict(order)).rowcount:
                    self._connection.execute(_MESSAGE, (order.order_id, json.dumps(document)))

        self._until_done(write)

    def change(self, statement: LiteralString, *values: Any) -> None:
        """Update rows; the statement must be idempotent."""

        def write() -> None:
            with self._connection.transaction():
                self._connection.execute(statement, values)

        self._until_done(write)

    def read(self, query: LiteralString) -> list[tuple[Any, ...]]:
        """The rows of a query; empty if the table does not exist yet."""

        def fetch() -> list[tuple[Any, ...]]:
            try:
                with self._connection.transaction(), self._connection.cursor(row_factory=tuple_row) as cursor:
                    return cursor.execute(query).fetchall()
            except psycopg.errors.UndefinedTable:
                return []

        return self._until_done(fetch)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _until_done(self, act: Callable[[], T]) -> T:
        while True:
            try:
                if self._connection.closed:
                    self._connection = psycopg.connect(self._url)
                return act()
            except psycopg.OperationalError:
                with suppress(psycopg.Error):
                    self._connection.close()
                time.sleep(AGAIN_S)


def address_of(customer: int) -> str:
    """The e-mail address of a customer; one customer has an invalid address."""
    name = CUSTOMERS[customer - 1]
    return f"{REFUSED if name == UNREACHABLE else name.lower()}@shop.example"
