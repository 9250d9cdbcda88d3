"""The table of APIs."""

import re
import sys

from headrace.broker.apis import APIS


def test_each_handler_documents_its_api_and_the_versions_in_the_table() -> None:
    for key, api in APIS.items():
        text = f"{api.handle.__doc__}\n{sys.modules[api.handle.__module__].__doc__}"
        versions = f"version {api.low}" if api.low == api.high else f"versions {api.low}\u2013{api.high}"
        assert re.search(rf"\(key {key}\), {versions}\b", text), f"API {key}, {versions}"
