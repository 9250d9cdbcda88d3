"""Values as typed columns, from JSON, CSV, text and raw bytes, with the reason for each bad value."""

from headrace.columns.values.formats import value_parser
from headrace.columns.values.tokens import Parsed, UnsupportedType, ValueParser

__all__ = ["Parsed", "UnsupportedType", "ValueParser", "value_parser"]
