"""The states of a classic group, and the moves between them.

    Empty ──a member joins──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader's sync──▶ Stable
      ▲                          │    ▲                                  │                                │
      └──nobody is left──────────┘    └──a member joins, leaves or dies──┴────────────────────────────────┘

A group that is deleted or expires is Dead: it answers nothing any more.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class GroupState(StrEnum):
    """Where a group stands; the values are the words that Kafka's tools show."""

    EMPTY = "Empty"
    """No members. It lingers while it has offsets; so do groups that only ever commit offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to join the next generation."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The members of the generation are known; waiting for the leader to assign their work."""
    STABLE = "Stable"
    """Every member has its assignment."""
    DEAD = "Dead"
    """Deleted or expired."""


MOVES: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
