"""The reference pages name everything that there is."""

import importlib
import re

import pytest

from headrace.client.security import OPTIONS
from headrace.settings import SETTINGS
from tests.docs.pages import PAGES, ROOT
from tools.configuration_page import PAGE, page

API = (ROOT / "docs/reference/api.md").read_text()
INTERNAL = {"HEADRACE_JAVA"}
"""Variables that Headrace sets for processes of its own."""


def test_the_configuration_reference_is_that_of_the_code() -> None:
    assert PAGE.read_text() == page(), "the page is stale: write it again with `make reference`"


def test_every_variable_that_the_code_names_is_in_the_configuration_reference() -> None:
    sources = [file.read_text() for file in (ROOT / "src/headrace").rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"\bHEADRACE_[A-Z_]*[A-Z]\b", source)}
    settings = {setting.variable for setting in SETTINGS if setting.variable.startswith("HEADRACE_")}
    options = {option.variable for option in OPTIONS.values()}
    assert named - INTERNAL - options == settings


@pytest.mark.parametrize("module", ["headrace", "headrace.events", "headrace.queues", "headrace.testing"])
def test_every_public_name_is_in_the_api_reference(module: str) -> None:
    described = [_find(path) for path in re.findall(r"^::: ([\w.]+)$", API, re.MULTILINE)]
    members = importlib.import_module(module)
    missing = [name for name in members.__all__ if getattr(members, name) not in described]
    assert not missing


def test_files_that_the_documentation_names_exist() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`((?:tests|tools|src|bench|docs)/\w[\w/-]*(?:\.\w+)?)`", text))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def _find(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
