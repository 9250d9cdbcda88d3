"""The settings of a capture, validated when they are created."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.errors import Misuse

SCHEMES: Final = ("postgres", "postgresql")
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """The settings of one capture. Its `repr` shows no password.

    >>> settings = CaptureSettings(url="postgres://ann:secret@db.example/shop", tables=("users",))
    >>> settings.name, settings.tables, settings.address
    ('shop', ('public.users',), 'postgres://ann@db.example/shop')
    """

    url: str = field(repr=False)
    """The database: postgres://user@host:port/database. The password may be in it, or where libpq looks."""
    tables: tuple[str, ...]
    """Names as schema.table; `*` is a wildcard, and the default schema is public."""
    name: str = ""
    """The name of the capture and the prefix of its topics; by default the name of the database."""
    columns: tuple[str, ...] = ()
    """Captured columns as schema.table.column; a table without an entry is captured with all columns."""
    mask: tuple[str, ...] = ()
    """Columns whose values are replaced by `****`."""
    hash: tuple[str, ...] = ()
    """Columns whose values are replaced by their SHA-256."""
    salt: str = field(default="", repr=False)
    """Hashed before each value, so that hashes of known values cannot be looked up."""
    outbox: str = ""
    """The outbox table, whose rows name the topic to which they go."""
    partitions: int = 1
    """The number of partitions of topics that the capture creates."""
    warn_bytes: int = GIB
    """Warn when the slot retains more WAL than this."""
    stop_bytes: int = 16 * GIB
    """Drop the slot when it retains more WAL than this, so that the disk does not fill; 0 for never."""
    once: bool = False
    """Whether to stop when everything that was committed at the start is captured."""

    def __post_init__(self) -> None:
        database = unquote(urlsplit(self.url).path.lstrip("/"))
        object.__setattr__(self, "tables", tuple(_qualify(table) for table in self.tables))
        object.__setattr__(self, "name", self.name or database)
        for what in ("columns", "mask", "hash"):
            object.__setattr__(self, what, tuple(_qualify(name, 3) for name in getattr(self, what)))
        if self.outbox:
            object.__setattr__(self, "outbox", _qualify(self.outbox))
        for problem in self._problems(database):
            raise Misuse(problem)

    def _problems(self, database: str) -> list[str]:
        problems = []
        if urlsplit(self.url).scheme not in SCHEMES or not database:
            problems.append(
                f"{self.address!r} is not a database that can be captured: write "
                "postgres://user@host:port/database."
            )
        if not self.tables and not self.outbox:
            problems.append("no tables are given: name them as schema.table, for example public.users.")
        if not NAME.fullmatch(self.name):
            problems.append(
                f"the name {self.name!r} cannot be a prefix of topic names: use letters, digits, dots, "
                "dashes and underscores."
            )
        if both := set(self.mask) & set(self.hash):
            problems.append(f"{min(both)} is masked and hashed: choose one.")
        if self.partitions < 1:
            problems.append("a topic has at least one partition.")
        if self.warn_bytes < 0 or self.stop_bytes < 0:
            problems.append("the limits of retained WAL must not be negative.")
        return problems

    @cached_property
    def address(self) -> str:
        """The URL of the database without password and options, for display."""
        return redact_url(self.url)

    @property
    def slot(self) -> str:
        """The name of the replication slot and of the publication."""
        return slot_name(self.name)

    @property
    def transactional_id(self) -> str:
        """The transactional id of the capture's producer."""
        return f"headrace.capture.{self.name}"

    def topic(self, schema: str, table: str) -> str:
        """The topic of a table; characters that Kafka does not allow become underscores."""
        return re.sub("[^A-Za-z0-9._-]", "_", f"{self.name}.{schema}.{table}")

    def to_dict(self) -> dict[str, Any]:
        """All settings, including secrets, for a child process."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """The settings from the result of `to_dict`, also after JSON."""
        return cls(**document)


def slot_name(name: str) -> str:
    """The name of the replication slot and of the publication of a capture.

    >>> slot_name("shop-eu")
    'headrace_shop_eu'
    """
    return f"headrace_{re.sub('[^a-z0-9_]', '_', name.lower())}"[:63]


def redact_url(url: str) -> str:
    """A URL without password and options.

    >>> redact_url("postgres://ann:secret@db.example/shop?sslmode=require")
    'postgres://ann@db.example/shop'
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, user.partition(":")[0] + at + host, parts.path, "", ""))


def _qualify(name: str, parts: int = 2) -> str:
    """The name with its schema; the default schema is public."""
    found = name.strip().split(".")
    if len(found) == parts - 1:
        found = ["public", *found]
    if len(found) != parts or not all(found):
        form = ".".join(("schema", "table", "column")[:parts])
        raise Misuse(f"{name!r} is not the name of a {'table' if parts == 2 else 'column'}: write {form}.")
    return ".".join(found)
