"""A full-text index in the state folder: `into=search("products", key="id")`.

```text
<state>/search/<name>/
    headrace.json   the definition: which columns are searched, and how
    meta.json, …    tantivy's own; a commit replaces meta.json as a whole
```

A row is a document with its key, its columns, and the row as JSON, which is what a search returns. One more
document holds the batch marker of the job; it is replaced in the same commit as the rows. Readers are other
processes, and see each commit as a whole.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
from tantivy import Document, Index, Query, SchemaBuilder

from headrace.errors import HeadraceError, Misuse
from headrace.folders import write_durably
from headrace.sinks.rows import json_documents
from headrace.sinks.sink import DELETED, Refused, Superseded, Unavailable, Unsuitable, check_columns
from headrace.sinks.table_sink import checked_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tantivy import IndexWriter, Schema, SearchResult

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
        definition = self._definition(place.schema)
        folder = self.path or place.state / FOLDER / self.index
        folder.mkdir(parents=True, exist_ok=True)
        return SearchTarget(self.name, folder, definition, place)

    def _definition(self, schema: pa.Schema) -> IndexDefinition:
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


HEAP_BYTES: Final = 50_000_000
LONGEST_KEY_BYTES: Final = 60_000
"""What is longer could not be found again: tantivy leaves longer words out."""


class SearchTarget:
    """An index that is open for writing: by this process alone."""

    def __init__(self, name: str, folder: Path, definition: IndexDefinition, place: Place) -> None:
        self._name = name
        self._place = place
        self._definition = definition
        self._index = self._opened(folder)
        self._index.config_reader("Manual")
        self._writer: IndexWriter | None = self._locked(folder)

    def newest(self) -> int | None:
        """The newest batch that the index holds."""
        self._index.reload()
        searcher = self._index.searcher()
        found = searcher.search(Query.term_query(self._index.schema, MARK, self._place.job), 1)
        if not found.hits:
            return None
        mark = json.loads(searcher.doc(found.hits[0][1])[ROW][0])
        if mark["generation"] > self._place.generation:
            raise Superseded(
                f"{self._name}: a later run of {self._place.job} (number {mark['generation']}, and this is "
                f"{self._place.generation}) has written here: end this one. If the later one is gone for "
                "good, delete the folder of the index."
            )
        return int(mark["batch"]) if mark["generation"] == self._place.generation else None

    def write(self, batch: int, rows: pa.Table) -> None:
        """Apply the rows and the mark in one commit."""
        assert self._writer is not None
        newest = self.newest()
        if newest is not None and newest >= batch:
            return
        keys = self._keys(rows)
        try:
            self._apply(self._writer, rows, keys)
            self._mark(self._writer, batch)
            self._writer.commit()
        except ValueError as fault:  # tantivy's only error: the disk is full, or broken
            self.close()
            raise Unavailable(f"{self._name}: {fault}") from fault

    def close(self) -> None:
        """Give the lock back. What was not committed is forgotten."""
        self._writer = None

    def _opened(self, folder: Path) -> Index:
        """The index in the folder, made if it is not there."""
        kept = IndexDefinition.read(folder)
        if kept is not None and kept != self._definition:
            raise Unsuitable(
                f"{self._name}: the index in {folder} was made of other columns, or with another key. To "
                "make it anew, delete that folder and let the job begin at the start: `headrace job reset "
                f"{self._place.job} --to start`."
            )
        if kept is None:
            self._definition.write(folder)
        try:
            return Index(self._definition.schema(), str(folder))
        except ValueError as fault:
            raise Unsuitable(
                f"{self._name}: {folder} cannot be opened as an index ({fault}). If it is one, delete it "
                f"(with its {DEFINITION}), and let the job begin at the start."
            ) from fault

    def _locked(self, folder: Path) -> IndexWriter:
        try:
            return self._index.writer(HEAP_BYTES, 1)
        except ValueError as fault:
            if "LockBusy" not in str(fault):
                raise Unavailable(f"{self._name}: {fault}") from fault
            raise Unavailable(
                f"{self._name}: another process, or another job, writes the index in {folder}"
            ) from None

    def _keys(self, rows: pa.Table) -> list[str]:
        """The key of each row as a text; rows without one are refused."""
        columns = rows.select(list(self._definition.key))
        keys = list(json_documents(columns))
        refused = {
            index: f"{name} is null"
            for name in columns.column_names
            if columns[name].null_count
            for index, value in enumerate(columns[name].to_pylist())
            if value is None
        }
        for index, key in enumerate(keys):
            if len(key) > LONGEST_KEY_BYTES // 4 and len(key.encode()) > LONGEST_KEY_BYTES:
                refused[index] = f"its key is longer than {LONGEST_KEY_BYTES} bytes"
        if refused:
            raise Refused(refused)
        return keys

    def _apply(self, writer: IndexWriter, rows: pa.Table, keys: list[str]) -> None:
        deleted = rows[DELETED].to_pylist() if DELETED in rows.column_names else [False] * len(rows)
        shown = rows.drop_columns([DELETED]) if DELETED in rows.column_names else rows
        documents = list(json_documents(shown))
        columns = [
            (name, _ADDING[kind], shown[name].to_pylist()) for name, kind in self._definition.fields.items()
        ]
        last = {key: index for index, key in enumerate(keys)}
        for key, index in last.items():
            writer.delete_documents_by_term(KEY, key)
            if not deleted[index]:
                added = Document()
                added.add_text(KEY, key)
                added.add_bytes(ROW, documents[index].encode())
                for name, add, values in columns:
                    if values[index] is not None:
                        add(added, name, values[index])
                writer.add_document(added)

    def _mark(self, writer: IndexWriter, batch: int) -> None:
        writer.delete_documents_by_term(MARK, self._place.job)
        mark = Document()
        mark.add_text(MARK, self._place.job)
        mark.add_text(MARK, MARK)  # what all marks have, and rows do not
        content = {"generation": self._place.generation, "batch": batch}
        mark.add_bytes(ROW, json.dumps(content).encode())
        writer.add_document(mark)


def searched_columns(schema: pa.Schema) -> dict[str, str]:
    """How the columns of rows are searched; those that cannot be are not among them."""
    kinds = {column.name: field_kind(column.type) for column in schema if column.name != DELETED}
    return {name: kind for name, kind in kinds.items() if kind and SchemaBuilder.is_valid_field_name(name)}


def field_kind(kind: pa.DataType) -> str | None:
    """How a column of that type can be searched, if at all.

    >>> field_kind(pa.string()), field_kind(pa.list_(pa.int64()))
    ('word', None)
    """
    is_kind = pa.types
    if is_kind.is_string(kind) or is_kind.is_large_string(kind):
        return "word"
    if is_kind.is_integer(kind) and kind != pa.uint64():
        return "integer"
    if is_kind.is_floating(kind) or is_kind.is_decimal(kind):
        return "float"
    if is_kind.is_boolean(kind):
        return "boolean"
    return "time" if is_kind.is_timestamp(kind) or is_kind.is_date(kind) else None


def _add_time(document: Document, name: str, value: datetime | date) -> None:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    with contextlib.suppress(ValueError, OverflowError):  # before 1677 or behind 2262: shown, not searched
        document.add_date(name, moment)


_ADDING: Final[dict[str, Callable[[Document, str, Any], None]]] = {
    "text": Document.add_text,
    "word": Document.add_text,
    "integer": Document.add_integer,
    "float": lambda document, name, value: document.add_float(name, float(value)),
    "boolean": Document.add_boolean,
    "time": _add_time,
}
