"""The contract of sinks, on tables: of PostgreSQL, of SQLite, and on a sink that a user wrote."""

import json
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from headrace import postgres, sqlite
from headrace.sinks.sink import Sink, SinkContext, SinkWriter
from headrace.sinks.staging import StagedBatch
from headrace.testing.sinks import SinkContract


class OnPostgres(SinkContract):
    database: str

    @pytest.fixture(autouse=True)
    def _own_database(self, database: str) -> None:
        self.database = database

    def read(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.database, row_factory=dict_row) as connection:
            return connection.execute("SELECT * FROM revenue").fetchall()


class TestPostgresUpsert(OnPostgres):
    def sink(self) -> Sink:
        return postgres("revenue", key="product", url=self.database)


class TestPostgresAppend(OnPostgres):
    replaces = False

    def sink(self) -> Sink:
        return postgres("revenue", url=self.database)


class TestPostgresMirror(OnPostgres):
    deletes = True

    def sink(self) -> Sink:
        return postgres("revenue", key="product", mode="mirror", url=self.database)


class OnSqlite(SinkContract):
    @property
    def file(self) -> Path:
        return self.folder / "shop.db"

    def read(self) -> list[dict[str, Any]]:
        connection = sqlite3.connect(self.file)
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute("SELECT * FROM revenue")]
        finally:
            connection.close()


class TestSqliteAppend(OnSqlite):
    replaces = False

    def sink(self) -> Sink:
        return sqlite("revenue", file=self.file)


class TestSqliteMirror(OnSqlite):
    deletes = True

    def sink(self) -> Sink:
        return sqlite("revenue", key="product", mode="mirror", file=self.file)


@dataclass(frozen=True)
class Files:
    """A sink as a user might write it: each batch a file of JSON lines, whose name is its mark."""

    folder: Path

    @property
    def name(self) -> str:
        return f"files {self.folder.name}"

    def open(self, context: SinkContext) -> SinkWriter:
        folder = self.folder / f"{context.job}-{context.generation}"
        folder.mkdir(parents=True, exist_ok=True)
        return Folder(folder)


@dataclass(frozen=True)
class Folder:
    path: Path

    def last_batch(self) -> int | None:
        return max((int(file.stem) for file in self.path.glob("*.jsonl")), default=None)

    def commit(self, batch: int, staged: StagedBatch) -> None:
        with (self.path / "next").open("w") as file:
            for chunk in staged:
                file.writelines(json.dumps(row) + "\n" for row in chunk.read().to_pylist())
            file.flush()
            os.fsync(file.fileno())
        (self.path / "next").replace(self.path / f"{batch}.jsonl")

    def close(self) -> None:
        pass


class TestFiles(SinkContract):
    replaces = False

    def sink(self) -> Sink:
        return Files(self.folder / "files")

    def read(self) -> list[dict[str, Any]]:
        files = (self.folder / "files").glob("*/*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]
