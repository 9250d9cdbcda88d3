"""Options about headers by name: those that are columns of a source, and those that choose records.

    .option("headerColumns", "ce_type, ce_sequence long, `content type` binary")
    .option("whereHeaders", '{"ce_type": ["Added", "Removed"]}')

A name without a type is text. Names are those of the headers, and the columns bear them too. Records are left
out before their values are parsed, unless each of the headers that choose has one of the texts.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from headrace.spark.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.spark.options import Options

OPTION: Final = "headerColumns"
CHOICE: Final = "whereHeaders"
TYPES: Final = {
    "string": "string",
    "binary": "binary",
    "int": "int",
    "integer": "int",
    "long": "bigint",
    "bigint": "bigint",
}
"""The types that may be written, and what Spark calls them."""

_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^\s,`]+))(?:\s+(\w+))?\s*(?:,|$)")


def header_types(options: Options, taken: Iterable[str]) -> dict[str, str]:
    """The headers that are to be columns and their types; `taken` are names of columns that there are."""
    text = options.text(OPTION)
    found: dict[str, str] = {}
    if text is None:
        return found
    spelled = {name.lower(): f"{name} is a column of the source" for name in taken}
    for name, word in _written(text):
        if word.lower() not in TYPES:
            raise BadOption(
                f"{OPTION} has no type {word!r} for {name!r}: write string, binary, int or long, and cast "
                "afterwards"
            )
        if name.lower() in spelled:
            raise BadOption(
                f"{OPTION} names {name!r}, and {spelled[name.lower()]}: Spark could not tell them apart. "
                "Read such a header from the column headers, with includeHeaders"
            )
        spelled[name.lower()] = f"{name} too"
        found[name] = TYPES[word.lower()]
    return found


def wanted_headers(options: Options) -> dict[str, tuple[str, ...]]:
    """The headers that choose which records are read, each with the texts that it may have."""
    text = options.text(CHOICE)
    if text is None:
        return {}
    try:
        read = json.loads(text)
    except ValueError:
        read = None
    if not isinstance(read, dict) or not read or not all(map(_is_choice, read.values())):
        raise BadOption(
            f"{CHOICE} is {text!r}: write names of headers and lists of texts as JSON, such as "
            '{"ce_type": ["Added", "Removed"]}'
        )
    return {name: tuple(texts) for name, texts in read.items()}


def _is_choice(texts: object) -> bool:
    return isinstance(texts, list) and bool(texts) and all(isinstance(each, str) for each in texts)


def _written(text: str) -> list[tuple[str, str]]:
    """Names and types as they were written."""
    pairs: list[tuple[str, str]] = []
    position = 0
    while position < len(text) or not pairs:
        match = _COLUMN.match(text, position)
        if match is None:
            raise BadOption(
                f"{OPTION} cannot be read from {text[position:]!r} on: write names of headers with commas "
                "between, each with its type where it is not string: ce_type, ce_sequence long"
            )
        pairs.append((match[1] or match[2], match[3] or "string"))
        position = match.end()
    return pairs
