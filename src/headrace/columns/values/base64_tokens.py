"""Tokens as bytes: JSON carries them in base64."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.columns.values.text_tokens import strings
from headrace.columns.values.tokens import ESCAPED, STRING

if TYPE_CHECKING:
    from headrace.columns.values.tokens import Tokens


def binaries(tokens: Tokens) -> pa.BinaryArray:
    """The bytes of each token."""
    strange = tokens.present & (tokens.kinds != STRING) & (tokens.kinds != ESCAPED)
    tokens.doubtful[tokens.rows[strange]] = 1
    return pa.array(
        [_decoded(text, tokens, index) for index, text in enumerate(strings(tokens).to_pylist())], pa.binary()
    )


def _decoded(text: str | None, tokens: Tokens, index: int) -> bytes | None:
    try:
        return None if text is None else binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        tokens.doubtful[tokens.rows[index]] = 1
        return b""
