"""A search index on disk, and how it is asked.

```text
<state>/search/<name>/
    headrace.json   the definition: which columns are searched, and how
    meta.json, …    tantivy's own; a commit replaces meta.json as a whole
```

A row is a document with its key, its columns, and itself as JSON, which is what a search gives back. Beside
the rows there is one document for the job that writes: its mark, replaced in the same commit as the rows.
Readers are other processes, and see each commit as a whole.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, Misuse
from headrace.folders import write_durably

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tantivy import Index, Query, Schema, SearchResult

DEFINITION: Final = "headrace.json"
FOLDER: Final = "search"
KEY: Final = "_headrace_key"
MARK: Final = "_headrace_mark"
ROW: Final = "_headrace_row"
LIMIT: Final = 10


class NoSuchIndex(HeadraceError):
    """There is no search index of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition:
    """What an index is made of."""

    key: tuple[str, ...]
    text: tuple[str, ...]
    """The columns that are searched when a query names none."""
    fields: Mapping[str, str]
    """How each column is searched: text, word, integer, float, boolean or time; others are only shown."""
    tokenizer: str = "default"

    def schema(self) -> Schema:
        """The fields as tantivy knows them."""
        from tantivy import SchemaBuilder

        builder = SchemaBuilder()
        for name in (KEY, MARK):
            builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
        builder.add_bytes_field(ROW, stored=True)
        for name, kind in self.fields.items():
            match kind:
                case "text":
                    builder.add_text_field(name, tokenizer_name=self.tokenizer)
                case "word":
                    builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
                case "integer":
                    builder.add_integer_field(name, indexed=True, fast=True)
                case "float":
                    builder.add_float_field(name, indexed=True, fast=True)
                case "boolean":
                    builder.add_boolean_field(name, indexed=True)
                case "time":
                    builder.add_date_field(name, indexed=True, fast=True)
        return builder.build()

    def write(self, folder: Path) -> None:
        """Keep it in the folder of the index."""
        write_durably(folder / DEFINITION, json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> IndexDefinition | None:
        """The definition of the index in a folder; None where there is none."""
        try:
            kept = json.loads((folder / DEFINITION).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return IndexDefinition(
            key=tuple(kept["key"]),
            text=tuple(kept["text"]),
            fields=kept["fields"],
            tokenizer=kept["tokenizer"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A row that was found."""

    score: float
    """How well it fits; the best hit comes first."""
    row: dict[str, Any]
    """The row as JSON has it: times and decimals are texts."""


class SearchIndex:
    """A search index that can be asked, while a job writes it or not."""

    def __init__(self, folder: Path) -> None:
        from tantivy import Index

        definition = IndexDefinition.read(folder)
        if definition is None or not Index.exists(str(folder)):
            raise NoSuchIndex(
                f"there is no search index in {folder}{_others(folder)}. One is there once a job that writes "
                f'into=search("{folder.name}", …) has been started with this state folder.'
            )
        self.definition = definition
        self._index: Index = Index.open(str(folder))
        self._index.config_reader("Manual")

    def find(self, query: str, *, limit: int = LIMIT) -> list[Hit]:
        """The rows that fit best, of those that are committed now.

        `tea cup` finds rows with one of the words, `tea AND cup` with both, `"tea cup"` side by side;
        `name:tea` looks in one column, `price:[2 TO 5]` at numbers and times. `*` is every row.
        """
        found = self._search(query, limit)
        searcher = self._index.searcher()
        return [
            Hit(score=score, row=json.loads(searcher.doc(address)[ROW][0])) for score, address in found.hits
        ]

    def count(self, query: str = "*") -> int:
        """How many rows fit."""
        return int(self._search(query, 1).count)  # type: ignore[attr-defined]  # tantivy's types forget it

    def _search(self, query: str, limit: int) -> SearchResult:
        self._index.reload()
        return self._index.searcher().search(self._parsed(query), limit)

    def _parsed(self, query: str) -> Query:
        from tantivy import Occur
        from tantivy import Query as Queries

        text = list(self.definition.text)
        try:
            asked = self._index.parse_query(query, text)
        except ValueError as fault:
            raise Misuse(
                f"{query!r} cannot be read as a query: {fault}. Write words, with AND, OR, NOT and quotes, "
                f"or a column and a colon before them; the columns are {', '.join(self.definition.fields)}."
            ) from None
        marks = Queries.term_query(self._index.schema, MARK, MARK)
        return Queries.boolean_query([(Occur.Must, asked), (Occur.MustNot, marks)])


def search_index(name: str, *, state: str | None = None) -> SearchIndex:
    """The search index that a job writes `into=search(name, …)`, to ask it: `search_index("products")`.

    It is in the state folder, which is found as `headrace run` finds it unless one is named. An index that
    has a place of its own (`path=`) is opened by its path: `search_index("/var/lib/shop/products")`.
    """
    if "/" in name:
        return SearchIndex(Path(name))
    from headrace.settings import Settings

    return SearchIndex(Settings.read().state(state) / FOLDER / name)


def _others(folder: Path) -> str:
    names = sorted(path.parent.name for path in folder.parent.glob(f"*/{DEFINITION}"))
    return f" (there are: {', '.join(names)})" if names else ""
