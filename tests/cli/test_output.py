import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from headrace.cli.output import print_json, print_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    at: datetime
    span: timedelta


def test_columns_of_numbers_are_aligned_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "count"], [("a", 1), ("bbbbbb", 1000), ("c", None)])
    assert capsys.readouterr().out == "name    count\na           1\nbbbbbb   1000\nc           -\n"


def test_nothing_is_cut_off_when_no_terminal_limits_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [("x" * 500,)])
    assert "x" * 500 in capsys.readouterr().out


def test_names_are_not_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [("[red]:smile:[/red]",)])
    assert "[red]:smile:[/red]" in capsys.readouterr().out


def test_data_becomes_json_with_times_that_programs_read(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([Row(name="Zoë", at=datetime(2026, 1, 31, 12, tzinfo=UTC), span=timedelta(seconds=2))])
    out = capsys.readouterr().out
    assert json.loads(out) == [{"name": "Zoë", "at": "2026-01-31T12:00:00.000Z", "span": 2000}]
    assert "Zoë" in out
