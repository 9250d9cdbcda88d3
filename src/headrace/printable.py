r"""Text from records and names, made safe to show in a terminal.

A terminal acts on control characters: an escape sequence in a record's key can move the cursor, hide lines or
set the clipboard, and a bidirectional override can reverse what is read. Where text is shown to people these
characters are escaped the way Python writes them. Bytes that programs read are never changed.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters (C0, DEL, C1) other than tab and newline, and the controls of text direction."""
IN_JSON: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Those of them that `json.dumps` leaves as they are."""


def printable(text: str) -> str:
    r"""The text with control characters escaped; tabs and newlines stay.

    >>> printable("tea\x1b[2J\ncup")
    'tea\\x1b[2J\ncup'
    """
    return CONTROLS.sub(lambda found: _escape(found[0]), text)


def printable_line(text: str) -> str:
    r"""The text on one line: tabs and newlines are escaped too.

    >>> printable_line("tea\ncup")
    'tea\\ncup'
    """
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")


def printable_bytes(content: bytes) -> bytes:
    r"""Bytes of a record as a terminal can show them; what is not UTF-8 is escaped as well.

    >>> printable_bytes(b"tea\x1b]0;x\x07\xff")
    b'tea\\x1b]0;x\\x07\\xff'
    """
    return printable(content.decode(errors="backslashreplace")).encode()


def json_text(value: Any, **options: Any) -> str:
    r"""`json.dumps` without ASCII escapes for letters, but with escapes for every control character.

    >>> json_text({"name": "Zoë\x9b2J"})
    '{"name": "Zoë\\u009b2J"}'
    """
    text = json.dumps(value, ensure_ascii=False, **options)
    return IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(character: str) -> str:
    return ascii(character)[1:-1]
