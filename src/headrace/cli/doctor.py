"""`headrace doctor`: checks whether this machine can run jobs, and shows how to fix problems."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import print_json, print_line, size_text
from headrace.client.bootstrap import PLAINTEXT
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.settings import BrokerAddress, Settings

GIB: Final = 1 << 30
USUAL_PORT: Final = 9092
ENOUGH_MEMORY: Final = 3 * GIB
ENOUGH_DISK: Final = 2 * GIB
PROBE_S: Final = 3.0
NEEDED: Final = {"pyspark": ((4, 3), (4, 4)), "pyarrow": ((21,), None), "confluent-kafka": ((2, 15), None)}
"""Packages with their minimum version, and the first version that is not supported."""


class Severity(StrEnum):
    """How serious a finding is."""

    GOOD = "good"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check, with advice if there is a problem."""

    what: str
    severity: Severity
    found: str
    advice: str = ""


def doctor(
    *,
    broker: Annotated[
        str | None, typer.Option("--broker", metavar="HOST:PORT", help="Address of the broker to check.")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="DIR", help="State directory to check.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check Java, memory, disk, ports, versions and the broker.

    The exit code is 1 if a problem prevents jobs from running.

    Example: headrace doctor
    """
    findings = examine(broker=broker, state=state)
    if as_json:
        print_json(findings)
    else:
        _print(findings)
    if any(finding.severity is Severity.PROBLEM for finding in findings):
        raise typer.Exit(1)


def examine(*, broker: str | None = None, state: str | None = None) -> list[Finding]:
    """The results of all checks."""
    from headrace.settings import Settings

    settings = Settings.read()
    checks: list[Callable[[], Finding]] = [
        python_version,
        java_version,
        *(lambda name=name: package_version(name) for name in NEEDED),
        memory,
        lambda: disk(settings.state(state)),
        own_name,
        lambda: reach_broker(settings, broker),
    ]
    return [check() for check in checks]


def python_version() -> Finding:
    """Whether this Python is new enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    return _judged("Python", found, "use Python 3.11 or later", good=sys.version_info >= (3, 11))


def java_version() -> Finding:
    """The Java that Spark uses."""
    from headrace.spark.java import NoJava, find_java

    try:
        java = find_java()
    except NoJava as fault:
        return Finding(what="Java", severity=Severity.PROBLEM, found="none", advice=str(fault))
    found = f"{java.version}, {java.executable} ({java.found_in})"
    return Finding(what="Java", severity=Severity.GOOD, found=found)


def package_version(name: str) -> Finding:
    """Whether a package is installed in a supported version."""
    least, below = NEEDED[name]
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        advice = f"install it: {sys.executable} -m pip install {name}"
        return Finding(what=name, severity=Severity.PROBLEM, found="not installed", advice=advice)
    version = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    good = version >= least and (below is None or version < below)
    wanted = f">={'.'.join(map(str, least))}" + ("" if below is None else f",<{'.'.join(map(str, below))}")
    return _judged(name, found, f"{sys.executable} -m pip install '{name}{wanted}'", good=good)


def memory() -> Finding:
    """Whether there is enough memory for Spark's heap, its Python processes and the page cache."""
    from headrace.spark.java import driver_memory_gib, usable_memory_bytes

    usable = usable_memory_bytes()
    found = f"{size_text(usable)}, of which Spark's heap gets {driver_memory_gib(usable)} GiB"
    advice = (
        f"jobs on this machine need {size_text(ENOUGH_MEMORY)}: add memory, or name a cluster by --master"
    )
    return _judged("memory", found, advice, good=usable >= ENOUGH_MEMORY, otherwise=Severity.WARNING)


def disk(state: Path) -> Finding:
    """Whether the state directory is writable and has enough space."""
    there = next(folder for folder in (state.absolute(), *state.absolute().parents) if folder.exists())
    if not os.access(there, os.W_OK):
        advice = "choose a folder that you may write to: --state DIR, HEADRACE_STATE, or headrace.toml"
        return Finding(what="disk", severity=Severity.PROBLEM, found=f"{there} is read-only", advice=advice)
    free = shutil.disk_usage(there).free
    found = f"{size_text(free)} free for {state}"
    advice = "make room, or put the state folder elsewhere (--state DIR)"
    return _judged("disk", found, advice, good=free >= ENOUGH_DISK, otherwise=Severity.WARNING)


def own_name() -> Finding:
    """Whether the machine's host name can be resolved, which Spark needs."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as fault:
        found = f"{name}: {fault.strerror or fault}"
        advice = f"add a line `127.0.0.1 {name}` to /etc/hosts; Spark looks up the machine's own name"
        return Finding(what="own name", severity=Severity.WARNING, found=found, advice=advice)
    return Finding(what="own name", severity=Severity.GOOD, found=f"{name} is {address}")


def reach_broker(settings: Settings, option: str | None) -> Finding:
    """Whether the configured broker accepts connections; without one, whether the default port is free."""
    try:
        address = settings.broker(option)
    except HeadraceError as fault:
        return Finding(what="broker", severity=Severity.PROBLEM, found="bad address", advice=str(fault))
    if address is None:
        return _usual_port()
    if address.profile != PLAINTEXT:
        return _authenticate(address)
    for one in address.addresses:
        if _answers(one.host, one.port):
            return Finding(what="broker", severity=Severity.GOOD, found=f"{one} answers ({address.origin})")
    advice = "start it with `headrace broker`, or correct the address"
    found = f"{address} ({address.origin}) does not answer"
    return Finding(what="broker", severity=Severity.PROBLEM, found=found, advice=advice)


def _authenticate(address: BrokerAddress) -> Finding:
    """Whether a broker accepts the security profile."""
    from headrace.client.cluster import Cluster

    with Cluster(address.addresses, profile=address.profile, timeout_s=PROBE_S) as cluster:
        try:
            found = f"{cluster.any().name} accepts the security profile {address.profile} ({address.origin})"
        except HeadraceError as fault:
            found = f"{address} ({address.origin}) does not accept this client"
            return Finding(what="broker", severity=Severity.PROBLEM, found=found, advice=str(fault))
    return Finding(what="broker", severity=Severity.GOOD, found=found)


def _usual_port() -> Finding:
    if not _answers("127.0.0.1", USUAL_PORT):
        found = f"none named: `headrace run` starts its own on port {USUAL_PORT}"
        return Finding(what="broker", severity=Severity.GOOD, found=found)
    found = f"none named, and something listens on port {USUAL_PORT}"
    advice = f"to use that broker, set HEADRACE_BROKER=127.0.0.1:{USUAL_PORT}"
    return Finding(what="broker", severity=Severity.WARNING, found=found, advice=advice)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), PROBE_S).close()
    except OSError:
        return False
    return True


def _judged(
    what: str, found: str, advice: str, *, good: bool, otherwise: Severity = Severity.PROBLEM
) -> Finding:
    if good:
        return Finding(what=what, severity=Severity.GOOD, found=found)
    return Finding(what=what, severity=otherwise, found=found, advice=advice)


def _print(findings: list[Finding]) -> None:
    marks = {Severity.GOOD: "✓", Severity.WARNING: "!", Severity.PROBLEM: "✗"}
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        print_line(f"{marks[finding.severity]} {finding.what.ljust(width)}  {finding.found}")
        if finding.advice:
            print_line(f"  {' ' * width}  → {finding.advice}")
