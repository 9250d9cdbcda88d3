"""Log records on standard error."""

import json
import logging

import pytest

from headrace.logs import configure_logging

HOSTILE = "tea\x1b]0;x\x07\x9b2J\nWARNING forged\u202e"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_log_record_is_one_line_without_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    configure_logging("warning", log_format)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        root.exception("the record %s", HOSTILE)
    said = capsys.readouterr().err
    assert not any(not each.isprintable() for each in said.replace("\n", ""))
    first = said.splitlines()[0]
    assert "WARNING forged" in first
    if log_format == "json":
        assert json.loads(first)["message"] == f"the record {HOSTILE}"
