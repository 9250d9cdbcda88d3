"""Spark's own Kafka connector, to compare with: in a virtual environment of its own, with its jars.

    connector = SparkConnector.fetch()
    subprocess.run([connector.python, "program.py"], env=connector.environment())

A connector must be of the very version of the Spark that it joins: this pair is Spark 4.0.0 and its own one,
whatever version Headrace itself runs on.
Both are fetched once (about 450 MB), into `$HEADRACE_CACHE` or `~/.cache/headrace`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from tools.maven import Artifact, JarsUnavailable, appear, cache_folder, fetch

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
        return cls(_make_environment(cache or cache_folder()), jars)

    def environment(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment in which a plain PySpark program finds the connector."""
        jars = ",".join(str(jar) for jar in self.jars)
        own = {"PYSPARK_SUBMIT_ARGS": f"--jars {jars} pyspark-shell", "PYSPARK_PYTHON": str(self.python)}
        inherited = {name: value for name, value in environment.items() if name != "SPARK_HOME"}
        return inherited | own


def _make_environment(cache: Path) -> Path:
    """The interpreter of a virtual environment with that Spark; it appears whole or not at all."""
    number = f"{sys.version_info.major}.{sys.version_info.minor}"
    target = cache / f"spark-{SPARK_VERSION}-python-{number}"
    python = target / "bin" / "python"
    if target.is_dir():
        return python
    sys.stderr.write(f"Installing Spark {SPARK_VERSION} into {target}\n")
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as folder:
        # An environment may be moved as long as only its interpreter is called, not the programs beside it.
        made = Path(folder, "environment")
        requirements = Path(folder, "requirements.txt")
        requirements.write_text(REQUIREMENTS)
        _run([sys.executable, "-m", "venv", str(made)])
        pip = [str(made / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", "--require-hashes", "-r", str(requirements)])
        appear(made, target)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SparkConnectorUnavailable(
            f"Spark {SPARK_VERSION} could not be installed (exit {done.returncode} of {' '.join(command)}): "
            f"look at the answer below, and at the package index that pip uses.\n{done.stdout}{done.stderr}"
        )
