"""Headrace and those that it is compared with, each with the environment that its program runs in."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tools.environments import make_environment
from tools.maven import Artifact, fetch

PEERS = Path(__file__).parent / "peers"
FLINK, PATHWAY, BYTEWAX, QUIX = "2.3.0", "0.33.0", "0.21.1", "3.28.1"
FLINK_KAFKA = Artifact("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2", alone=True)

# What each can express, by the kinds of `works`.
_COMMON = frozenset({"tumbling", "hopping", "session", "table", "streams"})
KINDS = {
    "headrace": _COMMON | {"sliding", "view"},
    "flink": _COMMON | {"sliding", "view"},
    "pathway": _COMMON | {"view"},
    "bytewax": _COMMON,
    "quix": _COMMON | {"sliding"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system, and what starts its program."""

    name: str
    title: str
    versions: Mapping[str, str]
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of work that it can express."""
        return KINDS[self.name]


def headrace() -> System:
    """Headrace in this environment."""
    return System(
        name="headrace",
        title="Headrace",
        versions={name: version(name) for name in ("headrace", "pyspark", "pyarrow", "numba")},
        command=(sys.executable, "-m", "bench.streams.program"),
        environment=dict(os.environ),
    )


def flink() -> System:
    """PyFlink: its SQL, which runs in the JVM, with as many tasks as there are cores."""
    jars = fetch(f"flink-kafka-{FLINK_KAFKA.version}", [FLINK_KAFKA])
    return _peer(
        "flink",
        f"PyFlink {FLINK}",
        package=("apache-flink", FLINK),
        versions={FLINK_KAFKA.name: FLINK_KAFKA.version},
        environment={"BENCH_JAR": (jars / FLINK_KAFKA.file).absolute().as_uri()},
    )


def pathway() -> System:
    """Pathway, with a thread for each core."""
    return _peer("pathway", f"Pathway {PATHWAY}", package=("pathway", PATHWAY))


def bytewax() -> System:
    """Bytewax, with a process for each core."""
    return _peer("bytewax", f"Bytewax {BYTEWAX}", package=("bytewax", BYTEWAX))


def quix() -> System:
    """Quix Streams, with a process for each core."""
    return _peer("quix", f"Quix Streams {QUIX}", package=("quixstreams", QUIX))


SYSTEMS: dict[str, Callable[[], System]] = {
    "headrace": headrace,
    "flink": flink,
    "pathway": pathway,
    "bytewax": bytewax,
    "quix": quix,
}


def _peer(
    name: str,
    title: str,
    *,
    package: tuple[str, str],
    versions: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> System:
    requirements = (PEERS / f"{package[0]}.lock").read_text()
    python = make_environment("-".join(package), requirements)
    return System(
        name=name,
        title=title,
        versions={package[0]: package[1], **(versions or {})},
        command=(str(python), "-m", f"bench.streams.peers.{name}"),
        environment={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
    )
