"""Spark's own Kafka connector, to compare with: in a virtual environment of its own, with its jars.

    connector = SparkConnector.fetch()
    subprocess.run([connector.python, "program.py"], env=connector.environment())

A connector must be of the very version of the Spark that it joins: this pair is Spark 4.0.0 and its own one,
whatever version Headrace itself runs on.
Both are fetched once (about 450 MB), into `$HEADRACE_CACHE` or `~/.cache/headrace`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from tools.environments import EnvironmentUnavailable, make_environment
from tools.maven import Artifact, JarsUnavailable, fetch

SPARK_VERSION = "4.0.0"
ARTIFACTS = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_VERSION, alone=True),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", SPARK_VERSION, alone=True),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1", alone=True),
    Artifact("org.apache.commons", "commons-pool2", "2.12.0", alone=True),
)
# With their hashes, as in the lock files.
REQUIREMENTS = f"""\
pyspark=={SPARK_VERSION} --hash=sha256:38db1b4f6095a080d7605e578d775528990e66dc326311d93e94a71cfc24e5a5
py4j==0.10.9.9 --hash=sha256:c7c26e4158defb37b0bb124933163641a2ff6e3a3913f7811b0ddbe07ed61533
"""


class SparkConnectorUnavailable(Exception):
    """Spark's connector could not be fetched; the message says why and what to do."""


class SparkConnector(NamedTuple):
    """A Python that has Spark, and the jars that let this Spark read Kafka."""

    python: Path
    jars: tuple[Path, ...]

    @classmethod
    def fetch(cls, cache: Path | None = None) -> Self:
        """The connector, fetched by Maven and pip when it is not there yet."""
        try:
            folder = fetch(f"spark-connector-{SPARK_VERSION}", ARTIFACTS, cache)
        except JarsUnavailable as unavailable:
            raise SparkConnectorUnavailable(str(unavailable)) from None
        jars = tuple(folder / artifact.file for artifact in ARTIFACTS)
        try:
            python = make_environment(f"spark-{SPARK_VERSION}", REQUIREMENTS, cache)
        except EnvironmentUnavailable as unavailable:
            raise SparkConnectorUnavailable(str(unavailable)) from None
        return cls(python, jars)

    def environment(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment in which a plain PySpark program finds the connector."""
        jars = ",".join(str(jar) for jar in self.jars)
        own = {"PYSPARK_SUBMIT_ARGS": f"--jars {jars} pyspark-shell", "PYSPARK_PYTHON": str(self.python)}
        inherited = {name: value for name, value in environment.items() if name != "SPARK_HOME"}
        return inherited | own
