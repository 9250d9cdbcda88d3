"""A session that `headrace.testing.run` finds, and an application to define jobs in."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace import App
from headrace.testing import EmbeddedBroker
from tests.streams.workshop import Workshop


@pytest.fixture
def app(spark: SparkSession) -> App:
    """An application for jobs that are run; the session is there before."""
    return App("shop")


@pytest.fixture
def workshop(spark: SparkSession, headrace_broker: EmbeddedBroker, tmp_path: Path) -> Workshop:
    """A broker and a state folder for applications that are run."""
    return Workshop(headrace_broker.bootstrap, tmp_path)
