"""What is to be captured, and how: one frozen object, checked when it is made."""

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
    """A capture as its user declares it. Its text shows no password.

    >>> settings = CaptureSettings(url="postgres://ann:secret@db.example/shop", tables=("users",))
    >>> settings.name, settings.tables, settings.address
    ('shop', ('public.users',), 'postgres://ann@db.example/shop')
    """

    url: str = field(repr=False)
    """The database: postgres://user@host:port/database. A password may be in it, or where libpq looks."""
    tables: tuple[str, ...]
    """As schema.table; `*` stands for anything, and a name without a schema is one of public."""
    name: str = ""
    """What the capture and its topics are called; the name of the database if none is given."""
    columns: tuple[str, ...] = ()
    """schema.table.column of those to be captured; tables of which none is named are captured whole."""
    mask: tuple[str, ...] = ()
    """Columns whose values are replaced by `****`."""
    hash: tuple[str, ...] = ()
    """Columns whose values are replaced by their SHA-256."""
    salt: str = field(default="", repr=False)
    """What is hashed before each value, so that hashes of known values cannot be looked up."""
    outbox: str = ""
    """The table whose rows say themselves to which topic they go."""
    partitions: int = 1
    """Of each topic that has to be made."""
    warn_bytes: int = GIB
    """How much log the database may hold for the capture before it is said."""
    stop_bytes: int = 16 * GIB
    """The same before the slot is dropped, so that the database's disk does not fill; 0 for never."""
    once: bool = False
    """Whether to end when all that was committed at the start is captured."""

    def __post_init__(self) -> None:
        database = unquote(urlsplit(self.url).path.lstrip("/"))
        object.__setattr__(self, "tables", tuple(_qualified(table) for table in self.tables))
        object.__setattr__(self, "name", self.name or database)
        for what in ("columns", "mask", "hash"):
            object.__setattr__(self, what, tuple(_qualified(name, 3) for name in getattr(self, what)))
        if self.outbox:
            object.__setattr__(self, "outbox", _qualified(self.outbox))
        for problem in self._problems(database):
            raise Misuse(problem)

    def _problems(self, database: str) -> list[str]:
        problems = []
        if urlsplit(self.url).scheme not in SCHEMES or not database:
            problems.append(
                f"{self.address!r} is no database that can be captured: write "
                "postgres://user@host:port/database."
            )
        if not self.tables and not self.outbox:
            problems.append("no tables are named: write them as schema.table, for example public.users.")
        if not NAME.fullmatch(self.name):
            problems.append(
                f"the name {self.name!r} cannot begin the names of topics: use letters, digits, dots, dashes "
                "and underscores."
            )
        if both := set(self.mask) & set(self.hash):
            problems.append(f"{min(both)} is to be masked and hashed: choose one.")
        if self.partitions < 1:
            problems.append("a topic has at least one partition.")
        if self.warn_bytes < 0 or self.stop_bytes < 0:
            problems.append("limits of the log that is held are not negative.")
        return problems

    @cached_property
    def address(self) -> str:
        """The database without password and options, for people and for the list of captures."""
        return redacted(self.url)

    @property
    def slot(self) -> str:
        """The name of the replication slot and of the publication."""
        return slot_of(self.name)

    @property
    def transactional_id(self) -> str:
        """The name under which the capture writes."""
        return f"headrace.capture.{self.name}"

    def topic(self, schema: str, table: str) -> str:
        """The topic of a table; what Kafka does not allow in a name becomes an underscore."""
        return re.sub("[^A-Za-z0-9._-]", "_", f"{self.name}.{schema}.{table}")

    def to_dict(self) -> dict[str, Any]:
        """All of it, secrets too, for a process of our own."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """What `to_dict` gave, perhaps by way of JSON."""
        return cls(**document)


def slot_of(name: str) -> str:
    """The name of the replication slot and of the publication of a capture.

    >>> slot_of("shop-eu")
    'headrace_shop_eu'
    """
    return f"headrace_{re.sub('[^a-z0-9_]', '_', name.lower())}"[:63]


def redacted(url: str) -> str:
    """An address without password and options.

    >>> redacted("postgres://ann:secret@db.example/shop?sslmode=require")
    'postgres://ann@db.example/shop'
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, user.partition(":")[0] + at + host, parts.path, "", ""))


def _qualified(name: str, parts: int = 2) -> str:
    """The name with its schema, which is public if none is said."""
    found = name.strip().split(".")
    if len(found) == parts - 1:
        found = ["public", *found]
    if len(found) != parts or not all(found):
        form = ".".join(("schema", "table", "column")[:parts])
        raise Misuse(f"{name!r} is not the name of a {'table' if parts == 2 else 'column'}: write {form}.")
    return ".".join(found)
