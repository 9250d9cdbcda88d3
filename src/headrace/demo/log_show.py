"""The demo as a person sees it: a live table while the shop runs, then a check that nothing was lost."""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.demo.findings import print_findings
from headrace.demo.log_shop import ORDERS, Clerk, Customers, open_shop, read_back
from headrace.testing.process import BrokerProcess

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PICTURES_PER_SECOND: Final = 4
PATIENCE_SECONDS: Final = 30
LEAST_SECONDS: Final = 4


class Show:
    """One run of the demo."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._seconds = max(seconds, LEAST_SECONDS)
        self._news: list[str] = []

    def run(self) -> bool:
        """Play all acts; whether the check at the end held."""
        with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
            broker = BrokerProcess(Path(folder))
            begin = time.perf_counter()
            with broker:
                self._tell(f"A broker is up on {broker.bootstrap} after {time.perf_counter() - begin:.2f} s.")
                open_shop(broker.bootstrap)
                return self._play(broker)

    def _tell(self, news: str) -> None:
        self._news.append(news)

    def _play(self, broker: BrokerProcess) -> bool:
        customers = Customers(broker.bootstrap)
        clerks = [
            Clerk(broker.bootstrap, "billing", "A"),
            Clerk(broker.bootstrap, "billing", "B"),
            Clerk(broker.bootstrap, "audit", "C"),
        ]
        for thread in (customers, *clerks):
            thread.start()
        self._tell("Orders come in. A and B share the work of one group; C, in another, gets everything.")
        with Live(console=self._console, refresh_per_second=PICTURES_PER_SECOND) as live:
            self._watch(live, customers, clerks, self._seconds / 2)
            self._crash(broker)
            self._watch(live, customers, clerks, self._seconds / 2)
            customers.close()
            self._tell("The shop is closed; the clerks finish what is left.")
            self._drain(live, customers, clerks)
        for clerk in clerks:
            clerk.close()
        return self._check(broker, customers, clerks)

    def _crash(self, broker: BrokerProcess) -> None:
        broker.kill()
        begin = time.perf_counter()
        broker.start()
        self._tell(f"The broker was killed (kill -9) and is back after {time.perf_counter() - begin:.2f} s.")

    def _watch(self, live: Live, customers: Customers, clerks: list[Clerk], seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            live.update(self._picture(customers, clerks))
            time.sleep(1 / PICTURES_PER_SECOND)

    def _drain(self, live: Live, customers: Customers, clerks: list[Clerk]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end and _missing(customers, clerks):
            live.update(self._picture(customers, clerks))
            time.sleep(1 / PICTURES_PER_SECOND)
        live.update(self._picture(customers, clerks))

    def _picture(self, customers: Customers, clerks: list[Clerk]) -> RenderableType:
        acknowledged = len(customers.acknowledged)
        table = Table(title=f"topic {ORDERS}: {acknowledged:,} orders acknowledged", title_justify="left")
        table.add_column("group")
        table.add_column("consumer")
        table.add_column("partitions")
        table.add_column("orders", justify="right")
        for clerk in clerks:
            shares = ", ".join(map(str, clerk.partitions)) or "none"
            group, name = clerk.name.split("/")
            table.add_row(group, name, shares, f"{len(clerk.seen):,}")
        return Group(*(Text(f"· {line}") for line in self._news), table)

    def _check(self, broker: BrokerProcess, customers: Customers, clerks: list[Clerk]) -> bool:
        stored = list(read_back(broker.bootstrap))
        numbers = [number for _, number in stored]
        findings = {
            "every acknowledged order is in the log": customers.acknowledged <= set(numbers),
            "no order is there twice": len(numbers) == len(set(numbers)),
            "each partition is in order": all(a < b for (p, a), (q, b) in pairwise(stored) if p == q),
            "every order reached billing, by A or by B": not _missing(customers, clerks[:2]),
            "every order reached audit": not _missing(customers, clerks[2:]),
        }
        held = print_findings(self._console, findings)
        self._console.print(
            f"\n{len(customers.acknowledged):,} orders and one crash. Where to look next: `headrace --help`, "
            "the example in README.md, and docs/."
        )
        return held


def _missing(customers: Customers, clerks: list[Clerk]) -> set[int]:
    """Acknowledged orders that some group has not seen."""
    missing: set[int] = set()
    for group in {clerk.group for clerk in clerks}:
        seen = set().union(*(set(clerk.seen) for clerk in clerks if clerk.group == group))
        missing |= customers.acknowledged - seen
    return missing
