"""The writer of a search index: rows replace one another by key; the mark goes with them in one commit."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from tantivy import Document, Index, Query, SchemaBuilder

from headrace.sinks.errors import Refused, Superseded, Unavailable, Unsuitable
from headrace.sinks.rows import json_documents
from headrace.sinks.search_index import DEFINITION, KEY, MARK, ROW, IndexDefinition
from headrace.sinks.sink import DELETED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tantivy import IndexWriter

    from headrace.sinks.sink import Place

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
