"""Who changes the products of the demo, in a real PostgreSQL: prices, categories, rows that come and go."""

from __future__ import annotations

import random
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from typing import LiteralString

TURN_S: Final = 0.3
NAMES: Final = ("Green tea", "Black tea", "Tea cup", "Iron pot", "Honey", "Tray")
CATEGORIES: Final = ("tea", "china", "sale")

Product = tuple[str, str, str]
"""Name, category and price."""
Sums = tuple[int, Decimal]
"""How many products, and what they cost together."""

_MAKE: Final = (
    "CREATE TABLE products "
    "(id bigint PRIMARY KEY, name text NOT NULL, category text NOT NULL, price numeric(10, 2) NOT NULL)"
)
_PUT: Final = (
    "INSERT INTO products VALUES (%(id)s, %(name)s, %(category)s, %(price)s) ON CONFLICT (id) DO NOTHING"
)
_CHANGES: Final[tuple[LiteralString, ...]] = (
    "UPDATE products SET price = %(price)s WHERE id = %(id)s",
    "UPDATE products SET category = %(category)s, price = %(price)s WHERE id = %(id)s",
    "DELETE FROM products WHERE id = %(id)s",
    _PUT,
    _PUT,
)


class Storekeeper(threading.Thread):
    """Changes a product every moment, and knows how many changes it has committed."""

    def __init__(self, url: str) -> None:
        super().__init__(name="storekeeper", daemon=True)
        self.changes = 0
        """How many rows were inserted, updated and deleted, all committed."""
        self.last = ""
        """The statement that changed something last."""
        self._closing = threading.Event()
        self._connection = psycopg.connect(url, autocommit=True)

    def open_shop(self) -> None:
        """Make the table, with all products in it."""
        self._connection.execute(_MAKE)
        for number in range(1, len(NAMES) + 1):
            self._run(_PUT, number)

    def run(self) -> None:
        """Go on until closed."""
        while not self._closing.wait(TURN_S):
            self._run(random.choice(_CHANGES), random.randint(1, len(NAMES)))

    def close(self) -> None:
        """Change nothing more; returns when the last change is committed."""
        self._closing.set()
        if self.is_alive():
            self.join()
        self._connection.close()

    def _run(self, statement: LiteralString, number: int) -> None:
        values = {
            "id": number,
            "name": NAMES[number - 1],
            "category": random.choice(CATEGORIES),
            "price": Decimal(random.randint(100, 999)) / 100,
        }
        changed = self._connection.execute(statement, values).rowcount
        if changed:
            self.changes += changed
            self.last = statement.partition(" ON ")[0] % {
                name: value if isinstance(value, int | Decimal) else f"'{value}'"
                for name, value in values.items()
            }


class Store:
    """The table itself, as anybody reads it."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def products(self) -> dict[int, Product]:
        """The rows by their ids."""
        rows = self._connection.execute("SELECT id, name, category, price::text FROM products")
        return {number: (name, category, price) for number, name, category, price in rows}

    def sums(self) -> dict[str, Sums]:
        """What the view has to hold."""
        rows = self._connection.execute(
            "SELECT category, count(*), sum(price) FROM products GROUP BY category"
        )
        return {category: (count, value) for category, count, value in rows}

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
