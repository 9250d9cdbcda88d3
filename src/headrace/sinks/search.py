"""The output into a full-text index that lives in the state folder: `into=search("products", key="id")`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import Misuse
from headrace.sinks.columns import check_columns
from headrace.sinks.errors import Unsuitable
from headrace.sinks.search_index import FOLDER, IndexDefinition
from headrace.sinks.table_sink import checked_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from headrace.sinks.search_target import SearchTarget
    from headrace.sinks.sink import Place

Words = Literal["as they are", "English"]
TOKENIZERS: Final[dict[Words, str]] = {"as they are": "default", "English": "en_stem"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSink:
    """Rows in a search index; made by `search(…)`."""

    index: str
    key: tuple[str, ...]
    text: tuple[str, ...] = ()
    words: Words = "as they are"
    path: Path | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return f"search {self.index}"

    def open(self, place: Place) -> SearchTarget:
        """Open the index for writing, and make it if it is not there."""
        from headrace.sinks.search_target import SearchTarget

        definition = self._definition(place.schema)
        folder = self.path or place.state / FOLDER / self.index
        folder.mkdir(parents=True, exist_ok=True)
        return SearchTarget(self.name, folder, definition, place)

    def _definition(self, schema: pa.Schema) -> IndexDefinition:
        from headrace.sinks.search_target import searched_columns

        kinds = searched_columns(schema)
        text = self.text or tuple(name for name, kind in kinds.items() if kind == "word")
        self._check(schema, kinds, text)
        return IndexDefinition(
            key=self.key,
            text=text,
            fields=kinds | dict.fromkeys(text, "text"),
            tokenizer=TOKENIZERS[self.words],
        )

    def _check(self, schema: pa.Schema, kinds: dict[str, str], text: Sequence[str]) -> None:
        check_columns(self.name, (*self.key, *text), schema.names)
        if not text or any(kinds.get(name) != "word" for name in text):
            raise Unsuitable(
                f"{self.name} has no text to search in {', '.join(text) or 'its rows'}: name columns of "
                'texts, such as text=["name", "description"].'
            )


def search(
    name: str,
    *,
    key: str | Sequence[str],
    text: Sequence[str] = (),
    words: Words = "as they are",
    path: str | None = None,
) -> SearchSink:
    """A full-text index for a job to write into: the newest row of each key, found by its words.

    `text` names the columns that are searched (all columns of texts, unless some are named); the others can
    be searched by name, as `price:[2 TO 5]`. With `words="English"` a search for cups finds a cup. A row with
    a true column `_deleted` deletes its key. The index is in the state folder, or at `path`;
    `headrace search` and `search_index(name)` ask it.

    >>> search("products", key="id", text=["name"]).name
    'search products'
    """
    if not name or "/" in name or name.startswith("."):
        raise Misuse(f"search: {name!r} cannot be the name of an index: it becomes that of a folder.")
    columns = checked_key(key, f"search {name!r}")
    if not columns:
        raise Misuse(f'search {name!r}: name the columns that make a row the same row, such as key="id".')
    if words not in TOKENIZERS:
        raise Misuse(f"search {name!r}: words={words!r} is not known: use {', '.join(TOKENIZERS)}.")
    texts = (text,) if isinstance(text, str) else tuple(text)
    return SearchSink(
        index=name, key=columns, text=texts, words=words, path=None if path is None else Path(path)
    )
