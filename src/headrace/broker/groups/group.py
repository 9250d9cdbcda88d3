"""The state machine of one classic group: events and the time go in, effects come out.

Theory of operation. A rebalance has two phases. While the group prepares, joins wait: when every member has
joined, or the rebalance timeout has passed, the next generation begins and all joins are answered at once.
While it completes, syncs wait: the leader, who was told everybody's subscription, brings everybody's
assignment, and all syncs are answered at once. Heartbeats tell the members when the next rebalance begins.

Nothing here waits, writes or looks at a clock. Answers and the wish to be stored are left in an outbox that
the caller empties after each event; deadlines are numbers that the caller reads with `next_deadline_ms`, and
`tick` does what is due.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, assert_never

from kio.schema.errors import ErrorCode

from headrace.broker.groups.admission import Add, Refuse, Replace, ShowCurrent, TellId, Update, judge_join
from headrace.broker.groups.deadlines import Deadlines
from headrace.broker.groups.member import Member
from headrace.broker.groups.outbox import Outbox
from headrace.broker.groups.replies import JoinReply, SyncReply
from headrace.broker.groups.requests import UNKNOWN_MEMBER
from headrace.broker.groups.standing import Standing
from headrace.broker.groups.states import MOVES, GroupState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.groups.replies import Effect, Ticket
    from headrace.broker.groups.requests import JoinRequest, MemberIdentity, SyncRequest
    from headrace.broker.groups.settings import GroupSettings


class Group(Standing):
    """One group, from its first member or its first offset to its end."""

    def __init__(self, group_id: str, settings: GroupSettings, now_ms: int) -> None:
        super().__init__(group_id, settings, now_ms)
        self._was_empty = False
        """Whether the rebalance under way is the first after the group had no members."""
        self._unsynced: set[str] = set()
        self._deadlines = Deadlines()
        self._outbox = Outbox()

    # What happens to a group

    def join(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        """Let a client into the next generation, or tell it why not; the answer waits for the group."""
        match judge_join(self, request):
            case Refuse(error):
                self._refuse_join(request, error, ticket, now_ms)
            case TellId():
                self._tell_id(request, ticket, now_ms)
            case Add():
                self._add(request, ticket, now_ms)
            case Replace(member):
                self._replace(member, request, ticket, now_ms)
            case Update(member):
                self._await_generation(member, request, ticket)
                self._rebalance_or_go_on(now_ms)
            case ShowCurrent(member):
                self._outbox.answer(ticket, self.current(member))
            case verdict:  # pragma: no cover
                assert_never(verdict)

    def sync(self, request: SyncRequest, ticket: Ticket, now_ms: int) -> None:
        """Give a member its assignment as soon as the leader has brought it."""
        error = self._check_sync(request)
        member = self.members.get(request.member_id)
        if error is not ErrorCode.none or member is None:
            self._outbox.answer(ticket, SyncReply(error=error))
            return
        self._mark_synced(member.id)
        if self.state is GroupState.STABLE:
            self._outbox.answer(ticket, self.assigned(member))
            return
        self._outbox.answer_sync(member, SyncReply(error=ErrorCode.rebalance_in_progress))  # it asked twice
        member.sync_ticket = ticket
        if member.id == self.members.leader:
            self._assign(dict(request.assignments), now_ms)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Keep a member alive, and tell it whether a rebalance wants it."""
        error = self.check_generation(member_id, instance_id, generation)
        member = self.members.get(member_id)
        if error is not ErrorCode.none or member is None:
            return error
        self._keep_alive(member, now_ms)
        return (
            ErrorCode.rebalance_in_progress
            if self.state is GroupState.PREPARING_REBALANCE
            else ErrorCode.none
        )

    def leave(self, leavers: Sequence[MemberIdentity], now_ms: int) -> list[ErrorCode]:
        """Let members go, each with its own result; the others rebalance once for all of them."""
        members_before = len(self.members)
        results = [self._let_go(leaver) for leaver in leavers]
        if len(self.members) < members_before:
            self._after_loss(now_ms)
        else:
            self._go_on(now_ms)  # a newcomer that will not come back may have been the last that was missing
        return results

    def touch(self, member_id: str, now_ms: int) -> None:
        """Keep a member alive that showed itself otherwise: a commit counts as a heartbeat."""
        member = self.members.get(member_id)
        if member is not None and self.state in {GroupState.STABLE, GroupState.PREPARING_REBALANCE}:
            self._keep_alive(member, now_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due: members that fell silent go, and a rebalance stops waiting."""
        self._expire_pending(now_ms)
        self._expire_members(now_ms)
        if self._deadlines.take_join(now_ms):
            self._stop_waiting_for_joins(now_ms)
        if self._deadlines.take_sync(now_ms):
            self._expire_unsynced(now_ms)

    def send_away(self, error: ErrorCode) -> None:
        """Answer everyone who waits with `error`, and be otherwise as before."""
        for member in self.members:
            self._outbox.answer_join(member, JoinReply(error=error, member_id=member.id))
            self._outbox.answer_sync(member, SyncReply(error=error))

    def end(self, now_ms: int) -> None:
        """Be Dead."""
        self.send_away(ErrorCode.coordinator_not_available)
        self.move(GroupState.DEAD, now_ms)

    def distrust(self, now_ms: int) -> None:
        """Have everybody join again, because what was decided last could not be stored."""
        if self.state is GroupState.STABLE:
            self._prepare(now_ms)

    # What the caller asks

    def take_effects(self) -> list[Effect]:
        """What is to be done since the last call, in order."""
        return self._outbox.take()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, if nothing happens before."""
        sessions = (member.expires_at_ms for member in self.members if member.expires_at_ms is not None)
        return self._deadlines.earliest([*sessions, *self.members.pending.values()])

    # Joining

    def _refuse_join(self, request: JoinRequest, error: ErrorCode, ticket: Ticket, now_ms: int) -> None:
        if error is not ErrorCode.group_max_size_reached:
            self._outbox.answer(ticket, JoinReply(error=error, member_id=request.member_id))
            return
        self._outbox.answer(ticket, JoinReply(error=error, member_id=UNKNOWN_MEMBER))
        self.members.remove(request.member_id)
        self._go_on(now_ms)

    def _tell_id(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        member_id = _new_member_id(request)
        self.members.pending[member_id] = now_ms + request.session_timeout_ms
        self._outbox.answer(ticket, JoinReply(error=ErrorCode.member_id_required, member_id=member_id))

    def _add(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        member = Member(
            id=request.member_id or _new_member_id(request),
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            join_ticket=ticket,
            expires_at_ms=now_ms + self.settings.new_member_join_timeout_ms,
        )
        if len(self.members) == 0:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._deadlines.more_members_came()
        self._rebalance_or_go_on(now_ms)

    def _replace(self, member: Member, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        """Put the new process of a static member in the place of the old one, which is fenced."""
        self._outbox.answer_join(member, JoinReply(error=ErrorCode.fenced_instance_id, member_id=member.id))
        self._outbox.answer_sync(member, SyncReply(error=ErrorCode.fenced_instance_id))
        old_id, old_leader = member.id, self.members.leader
        self.members.replace(member, _new_member_id(request))
        member.client_id, member.client_host = request.client_id, request.client_host
        member.is_new = False
        if old_id in self._unsynced:
            self._unsynced ^= {old_id, member.id}
        self._await_generation(member, request, ticket)
        self._keep_alive(member, now_ms)
        if self.state is GroupState.STABLE and self.members.elect_protocol() == self.protocol:
            self._welcome_back(member, request, old_leader or "")
        else:
            self._rebalance_or_go_on(now_ms)

    def _welcome_back(self, member: Member, request: JoinRequest, old_leader: str) -> None:
        """Let a static member go on with its assignment, without a rebalance."""
        self.learn_subscriptions()
        self._outbox.store()
        is_leader = self.members.leader == member.id
        if request.can_skip_assignment:
            self._outbox.answer_join(member, self.current(member, skip_assignment=is_leader))
        else:
            # An older client that finds itself leading would assign anew, and nobody would hear of it in a
            # stable group: it is told the leader's former id, so that it takes itself for a follower.
            self._outbox.answer_join(member, self.current(member, leader=old_leader))

    def _await_generation(self, member: Member, request: JoinRequest, ticket: Ticket) -> None:
        # The member asked again: it has given up the first request, which is answered all the same.
        superseded = JoinReply(error=ErrorCode.rebalance_in_progress, member_id=member.id)
        self._outbox.answer_join(member, superseded)
        self.members.update(member, request)
        member.join_ticket = ticket

    # Rebalancing

    def _rebalance_or_go_on(self, now_ms: int) -> None:
        if GroupState.PREPARING_REBALANCE in MOVES[self.state]:
            self._prepare(now_ms)
        else:
            self._go_on(now_ms)

    def _go_on(self, now_ms: int) -> None:
        """End the wait for joins when nobody is missing; a first rebalance waits for more members."""
        is_waiting = self.state is GroupState.PREPARING_REBALANCE and not self._was_empty
        if is_waiting and self.members.all_joined:
            self._complete_joins(now_ms)

    def _prepare(self, now_ms: int) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._take_back_assignments(now_ms)
        self._unsynced.clear()
        self._deadlines.stop_sync()
        self._was_empty = self.state is GroupState.EMPTY
        self.move(GroupState.PREPARING_REBALANCE, now_ms)
        timeout_ms = self.members.rebalance_timeout_ms
        if self._was_empty:
            self._deadlines.await_first_joins(now_ms, self.settings.initial_rebalance_delay_ms, timeout_ms)
        elif self.members.all_joined:
            self._complete_joins(now_ms)
        else:
            self._deadlines.await_joins(now_ms, timeout_ms)

    def _take_back_assignments(self, now_ms: int) -> None:
        for member in self.members:
            member.assignment = b""
            if self._outbox.answer_sync(member, SyncReply(error=ErrorCode.rebalance_in_progress)):
                self._keep_alive(member, now_ms)

    def _stop_waiting_for_joins(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if not (self._was_empty and self._deadlines.wait_for_more(now_ms)):
            self._complete_joins(now_ms)

    def _complete_joins(self, now_ms: int) -> None:
        self._deadlines.stop_join()
        for member in [member for member in self.members if not member.is_joining]:
            if member.instance_id is None:  # static members keep their place until their session ends
                self.members.remove(member.id)
        if len(self.members) and not self.members.elect_joined_leader():
            self._deadlines.await_joins(now_ms, self.members.rebalance_timeout_ms)
        else:
            self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol = self.members.elect_protocol() if len(self.members) else None
        self.learn_subscriptions()
        if self.protocol is None:
            self.move(GroupState.EMPTY, now_ms)
            self._outbox.store()
            return
        self.move(GroupState.COMPLETING_REBALANCE, now_ms)
        for member in self.members:
            self._outbox.answer_join(member, self.current(member))
            member.is_new = False
            self._keep_alive(member, now_ms)
            self._unsynced.add(member.id)
        self._deadlines.await_sync(now_ms, self.members.rebalance_timeout_ms)

    # Assigning

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        error = self.check_generation(request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.none:
            return error
        if request.protocol_type not in {None, self.protocol_type}:
            return ErrorCode.inconsistent_group_protocol
        if request.protocol not in {None, self.protocol}:
            return ErrorCode.inconsistent_group_protocol
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _mark_synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._deadlines.stop_sync()

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        self.move(GroupState.STABLE, now_ms)
        for member in self.members:
            member.assignment = assignments.get(member.id, b"")
        self._outbox.store()
        for member in self.members:
            if self._outbox.answer_sync(member, self.assigned(member)):
                self._keep_alive(member, now_ms)

    # Leaving and dying

    def _let_go(self, leaver: MemberIdentity) -> ErrorCode:
        member_id = leaver.member_id
        if member_id in self.members.pending:
            self.members.remove(member_id)
            return ErrorCode.none
        if member_id == UNKNOWN_MEMBER and leaver.instance_id is not None:
            member_id = self.members.static_id(leaver.instance_id) or UNKNOWN_MEMBER
        error = self.check_member(member_id, leaver.instance_id)
        if error is ErrorCode.none:
            self._drop(member_id)
        return error

    def _drop(self, member_id: str) -> None:
        """Remove a member; what it waits for ends with UNKNOWN_MEMBER_ID, so that a live one joins anew."""
        member = self.members.get(member_id)
        if member is not None:
            gone = ErrorCode.unknown_member_id
            self._outbox.answer_join(member, JoinReply(error=gone, member_id=UNKNOWN_MEMBER))
            self._outbox.answer_sync(member, SyncReply(error=gone))
        self.members.remove(member_id)
        self._unsynced.discard(member_id)

    def _after_loss(self, now_ms: int) -> None:
        if self.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            self._prepare(now_ms)
        else:
            self._go_on(now_ms)

    def _expire_pending(self, now_ms: int) -> None:
        lapsed = [member_id for member_id, at_ms in self.members.pending.items() if at_ms <= now_ms]
        for member_id in lapsed:
            self.members.remove(member_id)
        if lapsed:
            self._go_on(now_ms)

    def _expire_members(self, now_ms: int) -> None:
        silent = [m for m in self.members if m.expires_at_ms is not None and m.expires_at_ms <= now_ms]
        for member in silent:
            member.expires_at_ms = None  # set again with the answer that the member waits for
            if not member.is_excused:
                self._drop(member.id)
        if any(member.id not in self.members for member in silent):
            self._after_loss(now_ms)

    def _expire_unsynced(self, now_ms: int) -> None:
        """Remove members that never asked for their assignment: they hold partitions that nobody reads."""
        missing, self._unsynced = self._unsynced, set()
        for member_id in missing:
            self._drop(member_id)
        if missing:
            self._after_loss(now_ms)

    # Time

    def _keep_alive(self, member: Member, now_ms: int) -> None:
        # Before its first generation a member is timed by its join, which may wait longer than a session.
        if not member.is_new:
            member.expires_at_ms = now_ms + member.session_timeout_ms


def _new_member_id(request: JoinRequest) -> str:
    return f"{request.instance_id or request.client_id}-{uuid.uuid4()}"
