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
from headrace.sinks.sink import (
    DELETED,
    IncompatibleTarget,
    RowsRejected,
    TargetUnavailable,
    WriterFenced,
    require_columns,
    validate_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tantivy import IndexWriter, Schema, SearchResult

    from headrace.sinks.sink import SinkContext
    from headrace.sinks.staging import StagedBatch

Analyzer = Literal["standard", "english"]
TOKENIZERS: Final[dict[Analyzer, str]] = {"standard": "default", "english": "en_stem"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSink:
    """Rows in a search index; created by `search(…)`."""

    index: str
    key: tuple[str, ...]
    text: tuple[str, ...] = ()
    analyzer: Analyzer = "standard"
    path: Path | None = None

    @property
    def name(self) -> str:
        """The name for display."""
        return f"search {self.index}"

    def open(self, context: SinkContext) -> SearchWriter:
        """Open the index for writing; creates it if it does not exist."""
        definition = self._definition(context.schema)
        folder = self.path or context.state / FOLDER / self.index
        folder.mkdir(parents=True, exist_ok=True)
        return SearchWriter(self.name, folder, definition, context)

    def _definition(self, schema: pa.Schema) -> IndexDefinition:
        kinds = searched_columns(schema)
        text = self.text or tuple(name for name, kind in kinds.items() if kind == "word")
        self._check(schema, kinds, text)
        return IndexDefinition(
            key=self.key,
            text=text,
            fields=kinds | dict.fromkeys(text, "text"),
            tokenizer=TOKENIZERS[self.analyzer],
        )

    def _check(self, schema: pa.Schema, kinds: dict[str, str], text: Sequence[str]) -> None:
        require_columns(self.name, (*self.key, *text), schema.names)
        if not text or any(kinds.get(name) != "word" for name in text):
            raise IncompatibleTarget(
                f"{self.name} has no text columns in {', '.join(text) or 'its rows'}: name string "
                'columns, such as text=["name", "description"].'
            )


def search(
    name: str,
    *,
    key: str | Sequence[str],
    text: Sequence[str] = (),
    analyzer: Analyzer = "standard",
    path: str | None = None,
) -> SearchSink:
    """A full-text index as an output of a job, with the latest row of each key.

    `text` names the columns that are searched (by default all string columns); other columns can be searched
    by name, as `price:[2 TO 5]`. With `analyzer="english"`, words are stemmed: a search for cups finds cup. A
    row with `_deleted` deletes its key. The index is in the state folder, or at `path`; query it with
    `headrace search` or `search_index(name)`.

    >>> search("products", key="id", text=["name"]).name
    'search products'
    """
    if not name or "/" in name or name.startswith("."):
        raise Misuse(f"search: {name!r} is not a valid name of an index, which is the name of a folder.")
    columns = validate_key(key, f"search {name!r}")
    if not columns:
        raise Misuse(f'search {name!r}: name the key columns, such as key="id".')
    if analyzer not in TOKENIZERS:
        raise Misuse(f"search {name!r}: analyzer={analyzer!r} is unknown: use {', '.join(TOKENIZERS)}.")
    texts = (text,) if isinstance(text, str) else tuple(text)
    return SearchSink(
        index=name, key=columns, text=texts, analyzer=analyzer, path=None if path is None else Path(path)
    )


DEFINITION: Final = "headrace.json"
FOLDER: Final = "search"
KEY: Final = "_headrace_key"
MARKER: Final = "_headrace_mark"
ROW: Final = "_headrace_row"
LIMIT: Final = 10


class NoSuchIndex(HeadraceError):
    """There is no search index of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition:
    """The fields of an index."""

    key: tuple[str, ...]
    text: tuple[str, ...]
    """The columns that a query without column names searches."""
    fields: Mapping[str, str]
    """How each column is indexed: text, word, integer, float, boolean or time; others are only stored."""
    tokenizer: str = "default"

    def schema(self) -> Schema:
        """The schema for tantivy."""
        from tantivy import SchemaBuilder

        builder = SchemaBuilder()
        for name in (KEY, MARKER):
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
        """Write the definition to the folder of the index."""
        write_durably(folder / DEFINITION, json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> IndexDefinition | None:
        """The definition of the index in a folder, or None."""
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
    """A search result."""

    score: float
    """The relevance score; results are sorted by it."""
    row: dict[str, Any]
    """The row from JSON: times and decimals are strings."""


class SearchIndex:
    """A search index for queries; a job may write it at the same time."""

    def __init__(self, folder: Path) -> None:
        from tantivy import Index

        definition = IndexDefinition.read(folder)
        if definition is None or not Index.exists(str(folder)):
            raise NoSuchIndex(
                f"there is no search index in {folder}{_other_indexes(folder)}. It is created by a job "
                "that writes "
                f'into=search("{folder.name}", …) has been started with this state folder.'
            )
        self.definition = definition
        self._index: Index = Index.open(str(folder))
        self._index.config_reader("Manual")

    def find(self, query: str, *, limit: int = LIMIT) -> list[Hit]:
        """The best matches among the committed rows.

        `tea cup` finds rows with one of the words, `tea AND cup` with both, `"tea cup"` the phrase;
        `name:tea` searches one column, `price:[2 TO 5]` a range of numbers or times. `*` matches every row.
        """
        found = self._search(query, limit)
        searcher = self._index.searcher()
        return [
            Hit(score=score, row=json.loads(searcher.doc(address)[ROW][0])) for score, address in found.hits
        ]

    def count(self, query: str = "*") -> int:
        """The number of matching rows."""
        return int(self._search(query, 1).count)  # type: ignore[attr-defined]  # missing in tantivy's types

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
                f"{query!r} is not a valid query: {fault}. Use words, AND, OR, NOT and quotes, or "
                f"column:word; the columns are {', '.join(self.definition.fields)}."
            ) from None
        markers = Queries.term_query(self._index.schema, MARKER, MARKER)
        return Queries.boolean_query([(Occur.Must, asked), (Occur.MustNot, markers)])


def search_index(name: str, *, state: str | None = None) -> SearchIndex:
    """The search index that a job writes with `into=search(name, …)`, for queries.

    It is in the state folder, by default that of `headrace run`. An index with `path=` is opened by its path:
    `search_index("/var/lib/shop/products")`.
    """
    if "/" in name:
        return SearchIndex(Path(name))
    from headrace.settings import Settings

    return SearchIndex(Settings.read().state(state) / FOLDER / name)


def _other_indexes(folder: Path) -> str:
    names = sorted(path.parent.name for path in folder.parent.glob(f"*/{DEFINITION}"))
    return f" (existing: {', '.join(names)})" if names else ""


HEAP_BYTES: Final = 50_000_000
MAX_KEY_BYTES: Final = 60_000
"""tantivy does not index longer terms."""


class SearchWriter:
    """An index that is open for writing, with an exclusive lock."""

    def __init__(self, name: str, folder: Path, definition: IndexDefinition, context: SinkContext) -> None:
        self._name = name
        self._context = context
        self._definition = definition
        self._index = self._open_index(folder)
        self._index.config_reader("Manual")
        self._writer: IndexWriter | None = self._open_writer(folder)

    def last_batch(self) -> int | None:
        """The last batch in the index, or None."""
        self._index.reload()
        searcher = self._index.searcher()
        found = searcher.search(Query.term_query(self._index.schema, MARKER, self._context.job), 1)
        if not found.hits:
            return None
        marker = json.loads(searcher.doc(found.hits[0][1])[ROW][0])
        if marker["generation"] > self._context.generation:
            raise WriterFenced(
                f"{self._name}: a later run of {self._context.job} (generation {marker['generation']}, "
                f"this is {self._context.generation}) has written here: stop this run. If the later one was "
                "deleted, delete the folder of the index."
            )
        return int(marker["batch"]) if marker["generation"] == self._context.generation else None

    def commit(self, batch: int, staged: StagedBatch) -> None:
        """Write the rows and the batch marker in one commit."""
        assert self._writer is not None
        newest = self.last_batch()
        if newest is not None and newest >= batch:
            return
        try:
            self._apply_all(self._writer, staged)
            self._write_marker(self._writer, batch)
            self._writer.commit()
        except ValueError as fault:  # tantivy's only error: the disk is full or has failed
            self.close()
            raise TargetUnavailable(f"{self._name}: {fault}") from fault

    def close(self) -> None:
        """Release the lock, and discard what was not committed."""
        self._writer = None

    def _open_index(self, folder: Path) -> Index:
        """Open the index in the folder, or create it."""
        kept = IndexDefinition.read(folder)
        if kept is not None and kept != self._definition:
            raise IncompatibleTarget(
                f"{self._name}: the index in {folder} has other columns, or another key. To rebuild it, "
                "delete that folder and reset the job to the start: `headrace job reset "
                f"{self._context.job} --to start`."
            )
        if kept is None:
            self._definition.write(folder)
        try:
            return Index(self._definition.schema(), str(folder))
        except ValueError as fault:
            raise IncompatibleTarget(
                f"{self._name}: {folder} cannot be opened as an index ({fault}). If it is one, delete it "
                f"(with its {DEFINITION}), and reset the job to the start."
            ) from fault

    def _open_writer(self, folder: Path) -> IndexWriter:
        try:
            return self._index.writer(HEAP_BYTES, 1)
        except ValueError as fault:
            if "LockBusy" not in str(fault):
                raise TargetUnavailable(f"{self._name}: {fault}") from fault
            raise TargetUnavailable(
                f"{self._name}: another process, or another job, writes the index in {folder}"
            ) from None

    def _apply_all(self, writer: IndexWriter, staged: StagedBatch) -> None:
        """Add the rows to the next commit; raises `RowsRejected` if some have no valid key."""
        rejected: dict[int, str] = {}
        for chunk in staged:
            rows = chunk.read()
            try:
                keys = self._keys(rows)
            except RowsRejected as fault:
                rejected |= chunk.by_ordinal(fault.rows)
            else:
                self._apply(writer, rows, keys)
        if rejected:
            writer.rollback()
            raise RowsRejected(rejected)

    def _keys(self, rows: pa.Table) -> list[str]:
        """The key of each row as text; rows without a key are rejected."""
        columns = rows.select(list(self._definition.key))
        keys = list(json_documents(columns))
        rejected = {
            index: f"{name} is null"
            for name in columns.column_names
            if columns[name].null_count
            for index, value in enumerate(columns[name].to_pylist())
            if value is None
        }
        for index, key in enumerate(keys):
            if len(key) > MAX_KEY_BYTES // 4 and len(key.encode()) > MAX_KEY_BYTES:
                rejected[index] = f"its key is longer than {MAX_KEY_BYTES} bytes"
        if rejected:
            raise RowsRejected(rejected)
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

    def _write_marker(self, writer: IndexWriter, batch: int) -> None:
        writer.delete_documents_by_term(MARKER, self._context.job)
        marker = Document()
        marker.add_text(MARKER, self._context.job)
        marker.add_text(MARKER, MARKER)  # all markers have this term, and rows do not
        content = {"generation": self._context.generation, "batch": batch}
        marker.add_bytes(ROW, json.dumps(content).encode())
        writer.add_document(marker)


def searched_columns(schema: pa.Schema) -> dict[str, str]:
    """How each column is indexed; columns that cannot be indexed are left out."""
    kinds = {column.name: field_kind(column.type) for column in schema if column.name != DELETED}
    return {name: kind for name, kind in kinds.items() if kind and SchemaBuilder.is_valid_field_name(name)}


def field_kind(kind: pa.DataType) -> str | None:
    """How a column of that type is indexed, or None.

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
    with contextlib.suppress(ValueError, OverflowError):  # before 1677 or after 2262: stored, not indexed
        document.add_date(name, moment)


_ADDING: Final[dict[str, Callable[[Document, str, Any], None]]] = {
    "text": Document.add_text,
    "word": Document.add_text,
    "integer": Document.add_integer,
    "float": lambda document, name, value: document.add_float(name, float(value)),
    "boolean": Document.add_boolean,
    "time": _add_time,
}
