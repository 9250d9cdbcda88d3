"""The two ways to access Kafka from Spark, each with its environment."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from tools.spark_connector import ARTIFACTS, SPARK_VERSION, SparkConnector


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A way from Spark to Kafka; `sinks` are its ways to write."""

    name: str
    title: str
    sinks: tuple[str, ...]
    updating_sinks: tuple[str, ...]
    """Those that take rows of windows that may change yet; Spark withholds them from sinks in Python."""
    versions: Mapping[str, str]
    python: str
    environment: Mapping[str, str] = field(repr=False)

    def command(self, cores: int) -> Sequence[str]:
        """What starts its program."""
        return [self.python, "-m", "bench.spark.program", self.name, str(cores)]


def headrace() -> System:
    """Headrace in this environment."""
    spark = version("pyspark")
    return System(
        name="headrace",
        title=f"Headrace (Spark {spark})",
        sinks=("plain", "transactional"),
        updating_sinks=("transactional",),
        versions={"headrace": version("headrace"), "pyspark": spark, "pyarrow": version("pyarrow")},
        python=sys.executable,
        environment=dict(os.environ),
    )


def connector() -> System:
    """Spark's own connector, in an environment that is made for it if need be."""
    fetched = SparkConnector.fetch()
    return System(
        name="connector",
        title=f"Spark's connector (Spark {SPARK_VERSION})",
        sinks=("plain",),
        updating_sinks=("plain",),
        versions={"pyspark": SPARK_VERSION, **{jar.name: jar.version for jar in ARTIFACTS}},
        python=str(fetched.python),
        environment=fetched.environment(),
    )


SYSTEMS = {"headrace": headrace, "connector": connector}
