"""Events: typed, immutable, and of a version."""

import dataclasses
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest

from headrace.errors import Misuse
from headrace.events import Event, UnknownEvent
from headrace.events.errors import InvalidEvent
from headrace.events.event import event_schema


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    product: str
    price: Decimal


class Everything(Event):
    text: str
    number: int
    share: float
    flag: bool
    at: datetime
    day: date
    took: timedelta
    price: Decimal
    ref: UUID
    raw: bytes
    colour: Colour
    lines: list[Line]
    tags: set[str]
    counts: dict[str, int]
    pair: tuple[int, ...]
    note: str | None = None


def everything() -> Everything:
    return Everything(
        text="tea ☕",
        number=3,
        share=0.5,
        flag=True,
        at=datetime(2024, 5, 1, 12, 30, 0, 250, tzinfo=UTC),
        day=date(2024, 5, 1),
        took=timedelta(seconds=90),
        price=Decimal("12.50"),
        ref=UUID(int=7),
        raw=b"\x00\xff",
        colour=Colour.RED,
        lines=[Line("tea", Decimal("2.0"))],
        tags={"a", "b"},
        counts={"x": 1},
        pair=(1, 2),
    )


def test_an_event_survives_json_unchanged() -> None:
    schema = event_schema(Everything)
    assert schema.read(schema.write(everything()), 1) == everything()


def test_an_event_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        everything().number = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"number": "3"}, "Everything.number: '3' is of type str, not int"),
        ({"number": True}, "of type bool, not int"),
        ({"at": datetime(2024, 5, 1)}, "has no time zone"),  # noqa: DTZ001  that is the mistake
        ({"share": float("nan")}, "cannot be represented in JSON"),
        ({"lines": [1]}, "not Line"),
    ],
)
def test_fields_of_other_types_are_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidEvent, match=problem):
        dataclasses.replace(everything(), **fields)


class Priced(Event, version=3, formerly="Costed"):
    product: str
    cents: int

    def upcast_1(fields):  # noqa: N805
        return {**fields, "price": "0"}

    @staticmethod
    def upcast_2(fields):
        return {"product": fields["product"], "cents": int(Decimal(fields["price"]) * 100)}


@pytest.mark.parametrize(
    ("version", "stored", "cents"),
    [
        (1, b'{"product": "tea"}', 0),
        (2, b'{"product": "tea", "price": "1.5"}', 150),
        (3, b'{"product": "tea", "cents": 7}', 7),
    ],
)
def test_older_versions_are_upcast_to_the_current_one(version: int, stored: bytes, cents: int) -> None:
    assert event_schema(Priced).read(stored, version) == Priced(product="tea", cents=cents)


def test_a_newer_version_is_unknown() -> None:
    with pytest.raises(UnknownEvent, match=r"up to version 3.*Update this program"):
        event_schema(Priced).read(b"{}", 4)


def test_only_a_field_with_a_default_may_be_missing() -> None:
    class Renamed(Event):
        product: str
        note: str = "none"

    schema = event_schema(Renamed)
    assert schema.read(b'{"product": "tea"}', 1) == Renamed(product="tea")
    with pytest.raises(InvalidEvent, match=r"lacks the fields \['product'\]"):
        schema.read(b'{"note": "x"}', 1)
    with pytest.raises(InvalidEvent, match=r"has the fields \['colour'\].*version=2.*upcast_1"):
        schema.read(b'{"product": "tea", "colour": "red"}', 1)


def test_a_version_without_an_upcaster_is_refused_at_once() -> None:
    with pytest.raises(Misuse, match="upcast_1"):

        class Late(Event, version=2):
            product: str


def test_a_field_that_json_cannot_hold_is_refused() -> None:
    class Odd(Event):
        thing: complex

    with pytest.raises(Misuse, match=r"Odd.*complex"):
        Odd(thing=1j)
