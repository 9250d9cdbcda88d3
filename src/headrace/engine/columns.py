"""Names of columns: as Spark takes them literally, and apart where two sides of a join have the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

On: TypeAlias = "str | Sequence[str] | Mapping[str, str]"
"""What a join compares: columns with one name on both sides, or names of the left to those of the right."""


def quoted(name: str) -> str:
    """A column's name as Spark takes it literally, dots and all.

    >>> quoted("shop.id")
    '`shop.id`'
    """
    return "`" + name.replace("`", "``") + "`"


def key_pairs(on: On, left: Sequence[str], right: Sequence[str]) -> dict[str, str]:
    """The columns that a join compares, by their names on the left; each has to be there.

    >>> key_pairs("id", ["id", "x"], ["id", "y"]), key_pairs({"user": "id"}, ["user"], ["id"])
    ({'id': 'id'}, {'user': 'id'})
    """
    if isinstance(on, str):
        on = (on,)
    pairs = dict(on) if hasattr(on, "keys") else {name: name for name in on}
    if not pairs:
        raise Misuse('a join needs at least one column to compare: on="order_id", for example.')
    for names, columns, side in ((pairs, left, "left"), (pairs.values(), right, "right")):
        missing = [name for name in names if name not in columns]
        if missing:
            raise Misuse(
                f"the join compares {listed(missing)}, which its {side} side does not have: the columns "
                f"there are {listed(columns)}. Columns with different names are written as "
                'on={"left name": "right name"}.'
            )
    return pairs


def names_beside(names: Iterable[str], taken: Iterable[str], prefix: str) -> dict[str, str]:
    """New names for columns that come to stand beside others: a name that is taken gets the prefix.

    >>> names_beside(["paid", "at"], ["order_id", "at"], "shop.payments")
    {'paid': 'paid', 'at': 'shop_payments_at'}
    """
    used, word, result = set(taken), re.sub(r"\W", "_", prefix), {}
    for name in names:
        new = f"{word}_{name}" if name in used else name
        if new in used:
            raise Misuse(
                f"the column {name!r} of the join's right side has the name of one on the left, and so has "
                f"{new!r}, which it would be called instead: rename one of them before the join."
            )
        result[name] = new
        used.add(new)
    return result


def listed(names: Iterable[str]) -> str:
    """Names for a message.

    >>> listed(["a", "b"])
    "'a', 'b'"
    """
    return ", ".join(map(repr, names))
