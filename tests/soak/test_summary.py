"""The summary at the end of a soak run."""

import pytest

from tests.soak.summary import summary_lines


def report(name: str, **recorded: object) -> pytest.TestReport:
    return pytest.TestReport(
        name, ("", 0, ""), {}, "passed", None, "call", duration=61.4, user_properties=recorded.items()
    )


def test_the_summary_shows_the_figures_of_each_storm_and_the_sum_of_the_kills() -> None:
    reports = [report("b", kills=40), report("a", kills=220, anomalies=0), report("c")]
    assert list(summary_lines(reports)) == [
        "passed in 61 s: a: kills 220, anomalies 0",
        "passed in 61 s: b: kills 40",
        "260 kills in 2 storms",
    ]


def test_there_is_no_summary_without_storms() -> None:
    assert list(summary_lines([report("c")])) == []
