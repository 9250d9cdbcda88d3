"""A session that `headrace.testing.run` finds, and an application to define jobs in."""

import pytest
from pyspark.sql import SparkSession

from headrace import App


@pytest.fixture
def app(spark: SparkSession) -> App:
    """An application for jobs that are run; the session is there before."""
    return App("shop")
