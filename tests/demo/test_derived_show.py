"""The act of derived systems runs to its end in a session that is there, and its checks hold."""

import io

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from headrace.demo.derived_show import DerivedShow


@pytest.mark.timeout(240)
def test_index_cache_and_view_follow_a_database_while_redis_is_killed(spark: SparkSession) -> None:
    shown = io.StringIO()
    held = DerivedShow(Console(file=shown, width=100), seconds=3).run()
    assert held, shown.getvalue()
    assert shown.getvalue().count("✓") == 5
    assert "Redis was killed (kill -9)" in shown.getvalue()
    assert "view assortment" in shown.getvalue()
