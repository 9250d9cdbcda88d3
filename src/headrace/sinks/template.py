"""Texts with places for a row's columns: `revenue:{product}`, `{customer}: {amount:.2f}`.

The places are those of `str.format`: a column, perhaps an index into it (`{address[city]}`), and perhaps a
format. Values are written as they are in JSON, texts without quotes; one with a format as Python does it.
"""

from __future__ import annotations

import html
import string
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Misuse
from headrace.sinks.rows import text_of
from headrace.sinks.sink import check_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Unfit(ValueError):
    """A row that a template can make no text of; its message is the reason."""


@dataclass(frozen=True)
class Template:
    """A text with places for columns.

    >>> Template("{name}: {price:.2f}", "subject").text_of({"name": "tea", "price": 3})
    'tea: 3.00'
    """

    text: str
    what: str
    """The option that it was given as, for complaints."""

    def __post_init__(self) -> None:
        """Refuse what is no template."""
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(self.text) if field is not None]
        except ValueError as fault:
            raise self._misused(f"{fault}") from None
        if any(not field or field[0].isdigit() or "." in field for field in fields):
            raise self._misused("a place without a column")

    def _misused(self, why: str) -> Misuse:
        return Misuse(
            f"{self.what}={self.text!r} is no template ({why}): write columns in braces, such as "
            '"revenue:{product}", and {{ or }} for a brace that is meant as such.'
        )

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that it has places for."""
        fields = (field for _, field, _, _ in string.Formatter().parse(self.text) if field)
        return tuple(dict.fromkeys(field.partition("[")[0] for field in fields))

    @cached_property
    def parts(self) -> tuple[tuple[str, str | None], ...] | None:
        """Texts, each with the column behind it; None where columns have formats or indexes.

        >>> Template("revenue:{product}!", "key").parts
        (('revenue:', 'product'), ('!', None))
        """
        parts = list(string.Formatter().parse(self.text))
        if any(spec or conversion or "[" in (name or "") for _, name, spec, conversion in parts):
            return None
        return tuple((text, name) for text, name, _, _ in parts)

    def check(self, columns: Sequence[str], *, beside: Collection[str] = ()) -> None:
        """Refuse columns that rows do not have; `beside` are words that it can use besides."""
        needed = (name for name in self.columns if name not in beside)
        check_columns(f"{self.what}={self.text!r}", needed, columns)

    def text_of(self, row: Mapping[str, Any], *, complete: bool = False, is_html: bool = False) -> str:
        """The text of a row. Nulls are left out; where the text has to be `complete` they are `Unfit`.

        In HTML the values are escaped, and the template is not.
        """
        if complete:
            for name in self.columns:
                if row[name] is None:
                    raise Unfit(f"{name} is null, and {self.what}={self.text!r} needs it")
        try:
            return (_HTML if is_html else _TEXT).vformat(self.text, (), row)
        except (ValueError, TypeError, KeyError, IndexError) as fault:
            raise Unfit(f"{self.what}={self.text!r} fits no such row: {fault}") from None


class _RowFormatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return ""
        if format_spec:
            return format(value, format_spec)
        return text_of(value)


class _HtmlFormatter(_RowFormatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return html.escape(super().format_field(value, format_spec))


_TEXT: Final = _RowFormatter()
_HTML: Final = _HtmlFormatter()
