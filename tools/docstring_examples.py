"""A Griffe extension for the API reference: doctests in docstrings become code blocks."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Fences each doctest, which Markdown would take for a quotation."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object before it is rendered."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
