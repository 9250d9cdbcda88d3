"""What is derived from one table of a database: a search index, a cache, and sums. See docs/derived.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, redis, search

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.streams.table_view import TableView

TABLE: Final = "public.products"
TOPIC: Final = f"shop.{TABLE}"
VIEW: Final = "assortment"


def catalogue_app(database: str, cache: str, index: Path) -> App:
    """The application over a database and a cache, by their addresses, and the folder of an index."""
    app = App("catalogue")
    app.capture(database, tables=[TABLE], name="shop")
    products = app.table(TOPIC, "id long, name string, category string, price decimal(10,2)", key="id")
    searched = search("products", key="id", text=["name"], path=str(index))

    @app.job(into=[searched, redis("product:{id}", url=cache)])
    def catalogue() -> TableView:
        """Each product as it is now, for whoever looks it up or searches it."""
        return products.changes

    @app.job(into=app.view(VIEW, key="category", partitions=1), mode="update")
    def assortment() -> DataFrame:
        """How many products each category has, and what they cost together."""
        sums = (F.sum("_sign").alias("products"), F.sum(F.expr("_sign * price")).alias("value"))
        rows = products.changes.signed.df.groupBy("category").agg(*sums)
        return rows.withColumn("_deleted", F.col("products") == 0)

    return app
