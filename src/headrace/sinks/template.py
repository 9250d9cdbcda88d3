"""Templates with placeholders for columns: `revenue:{product}`, `{customer}: {amount:.2f}`.

Placeholders are those of `str.format`: a column, optionally an index (`{address[city]}`), and optionally a
format. Values are formatted as in JSON, strings without quotes; with a format, as Python does.
"""

from __future__ import annotations

import html
import string
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Misuse
from headrace.sinks.rows import format_value
from headrace.sinks.sink import require_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class TemplateError(ValueError):
    """A row that does not fit a template; the message is the reason."""


@dataclass(frozen=True)
class Template:
    """A template with placeholders for columns.

    >>> Template("{name}: {price:.2f}", "subject").render({"name": "tea", "price": 3})
    'tea: 3.00'
    """

    text: str
    what: str
    """The name of the option, for error messages."""

    def __post_init__(self) -> None:
        """Raise `Misuse` for an invalid template."""
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(self.text) if field is not None]
        except ValueError as fault:
            raise self._misuse(f"{fault}") from None
        if any(not field or field[0].isdigit() or "." in field for field in fields):
            raise self._misuse("a placeholder without a column")

    def _misuse(self, why: str) -> Misuse:
        return Misuse(
            f"{self.what}={self.text!r} is not a valid template ({why}): write columns in braces, such as "
            '"revenue:{product}", and {{ or }} for a literal brace.'
        )

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of its placeholders."""
        fields = (field for _, field, _, _ in string.Formatter().parse(self.text) if field)
        return tuple(dict.fromkeys(field.partition("[")[0] for field in fields))

    @cached_property
    def parts(self) -> tuple[tuple[str, str | None], ...] | None:
        """Pairs of a literal text and the column after it; None if columns have formats or indexes.

        >>> Template("revenue:{product}!", "key").parts
        (('revenue:', 'product'), ('!', None))
        """
        parts = list(string.Formatter().parse(self.text))
        if any(spec or conversion or "[" in (name or "") for _, name, spec, conversion in parts):
            return None
        return tuple((text, name) for text, name, _, _ in parts)

    def check(self, columns: Sequence[str], *, extra: Collection[str] = ()) -> None:
        """Raise an error for columns that the rows do not have; `extra` are additional variables."""
        needed = (name for name in self.columns if name not in extra)
        require_columns(f"{self.what}={self.text!r}", needed, columns)

    def render(self, row: Mapping[str, Any], *, complete: bool = False, is_html: bool = False) -> str:
        """The rendered text of a row. Nulls are empty; with `complete` they raise `TemplateError`.

        In HTML, values are escaped, and the template is not.
        """
        if complete:
            for name in self.columns:
                if row[name] is None:
                    raise TemplateError(f"{name} is null, and {self.what}={self.text!r} needs it")
        try:
            return (_HTML if is_html else _TEXT).vformat(self.text, (), row)
        except (ValueError, TypeError, KeyError, IndexError) as fault:
            raise TemplateError(f"{self.what}={self.text!r} cannot be rendered: {fault}") from None


class _RowFormatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return ""
        if format_spec:
            return format(value, format_spec)
        return format_value(value)


class _HtmlFormatter(_RowFormatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return html.escape(super().format_field(value, format_spec))


_TEXT: Final = _RowFormatter()
_HTML: Final = _HtmlFormatter()
