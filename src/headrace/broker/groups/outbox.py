"""What a group wants done, collected until its caller takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.groups.replies import Answer, Store

if TYPE_CHECKING:
    from headrace.broker.groups.member import Member
    from headrace.broker.groups.replies import Effect, JoinReply, SyncReply, Ticket


class Outbox:
    """Effects in the order in which they are to be done; every ticket is answered once."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def store(self) -> None:
        """Have the group written to the log before the answers that follow are given."""
        self._effects.append(Store())

    def answer(self, ticket: Ticket, reply: JoinReply | SyncReply) -> None:
        """Answer a request at once."""
        self._effects.append(Answer(ticket, reply))

    def answer_join(self, member: Member, reply: JoinReply) -> None:
        """Answer the member's join, if one waits."""
        if member.join_ticket is not None:
            self.answer(member.join_ticket, reply)
            member.join_ticket = None

    def answer_sync(self, member: Member, reply: SyncReply) -> bool:
        """Answer the member's sync, if one waits; False when none does."""
        if member.sync_ticket is None:
            return False
        self.answer(member.sync_ticket, reply)
        member.sync_ticket = None
        return True

    def take(self) -> list[Effect]:
        """Everything since the last call."""
        effects, self._effects = self._effects, []
        return effects
