"""The summary of a soak run: for each storm how long it took and what it recorded, and the sum of all kills.

A storm records a figure with pytest's `record_property`, which also works across the processes of `-n 2`.
"""

from collections.abc import Callable, Iterable, Iterator

import pytest

RecordProperty = Callable[[str, object], None]
"""The type of the fixture `record_property`."""


def summary_lines(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """One line for each test that recorded something, and a last one with the kills of all."""
    kills = storms = 0
    for report in sorted(reports, key=lambda report: report.nodeid):
        recorded = dict(report.user_properties)
        if report.when != "call" or not recorded:
            continue
        figures = ", ".join(f"{name} {value}" for name, value in recorded.items())
        yield f"{report.outcome} in {report.duration:.0f} s: {report.nodeid}: {figures}"
        storms += 1
        kills += int(recorded.get("kills", 0))
    if storms:
        yield f"{kills} kills in {storms} storms"
