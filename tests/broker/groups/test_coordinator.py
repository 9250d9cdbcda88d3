"""The group coordinator: pending requests, timers, restarts and administration."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.groups import GroupCoordinator, GroupSettings
from headrace.broker.groups.group import GroupState
from headrace.broker.groups.messages import MemberIdentity
from headrace.broker.groups.records import CommittedOffset
from headrace.broker.groups.settings import InvalidGroupSettings
from headrace.broker.offsets import CommittedOffsets
from headrace.broker.state_log import MemoryStateLog, Producer
from headrace.storage.errors import DiskError
from tests.broker.groups.harness import SESSION_MS, join_request, subscription, sync_request
from tests.broker.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.groups.messages import JoinResponse

WEEK_MS = 7 * 24 * 3_600_000
CHECK_MS = 600_000


class World:
    """A coordinator and offsets with one log and one clock; `restart` is the state after a crash."""

    def __init__(self, log: MemoryStateLog | None = None, clock: VirtualClock | None = None) -> None:
        self.log = log or MemoryStateLog()
        self.clock = clock or VirtualClock()
        self.offsets = CommittedOffsets(self.log, self.clock, GroupSettings())
        self.groups = GroupCoordinator(self.log, self.offsets, self.clock, GroupSettings())
        self.groups.load()

    def restart(self) -> World:
        return World(self.log, VirtualClock(self.clock.now_ms()))  # without the old timers

    async def joined(self, **details: object) -> JoinResponse:
        """A new member, joined in as many steps as its version needs."""
        first = await self.answered(**details)
        if first.error is not ErrorCode.member_id_required:
            return first
        return await self.answered(member_id=first.member_id, **details)

    async def answered(self, **details: object) -> JoinResponse:
        """The response to one join, after the timers that are due have fired."""
        task = asyncio.create_task(self.groups.join(join_request(**details)))  # type: ignore[arg-type]
        await turn()
        self.clock.advance(0)
        return await task

    async def stable(self, **details: object) -> JoinResponse:
        """A single member with the assignment `work`."""
        reply = await self.joined(**details)
        group_id = str(details.get("group_id", "g"))
        await self.groups.sync(
            sync_request(reply.member_id, reply.generation, {reply.member_id: b"work"}, group_id=group_id)
        )
        return reply

    def commit(self, group_id: str, topic: str = "t", offset: int = 5) -> None:
        at_ms = self.clock.now_ms()
        assert self.groups.check_commit(group_id, "", -1, None, transactional=False) is ErrorCode.none
        self.offsets.commit(group_id, {(topic, 0): CommittedOffset(offset=offset, committed_at_ms=at_ms)})

    def state(self, group_id: str = "g") -> GroupState | None:
        description = self.groups.describe(group_id)
        return None if description is None else description.state


async def turn() -> None:
    """Run all callbacks that are ready."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_single_consumer_joins_immediately(world):
    reply = await world.joined()
    assert (reply.error, reply.generation, reply.leader) == (ErrorCode.none, 1, reply.member_id)


async def test_a_member_id_of_a_removed_group_is_unknown(world):
    reply = await world.groups.join(join_request("c-1"))
    assert (reply.error, reply.member_id) == (ErrorCode.unknown_member_id, "c-1")
    assert (await world.groups.sync(sync_request("c-1", 1))).error is ErrorCode.unknown_member_id
    assert world.groups.heartbeat("g", "c-1", 1, None) is ErrorCode.unknown_member_id
    assert world.groups.leave("g", [MemberIdentity(member_id="c-1")]) == [ErrorCode.unknown_member_id]


async def test_a_member_without_heartbeats_is_removed_after_its_session_timeout(world):
    await world.stable()
    world.clock.advance(SESSION_MS - 1)
    assert world.state() is GroupState.STABLE
    world.clock.advance(1)
    assert world.state() is GroupState.EMPTY


async def test_heartbeats_keep_a_member_alive_over_many_sessions(world):
    member = await world.stable()
    for _ in range(20):
        world.clock.advance(SESSION_MS // 2)
        assert world.groups.heartbeat("g", member.member_id, 1, None) is ErrorCode.none


async def test_a_client_that_disconnects_during_a_pending_join_is_removed_after_its_session_timeout(world):
    leader = await world.stable()
    assigned = await world.groups.join(join_request())
    newcomer = asyncio.create_task(world.groups.join(join_request(assigned.member_id)))
    await turn()
    newcomer.cancel()
    await turn()
    rejoined = await world.groups.join(join_request(leader.member_id))
    assert len(rejoined.members) == 2
    world.clock.advance(SESSION_MS - 1)
    world.groups.heartbeat("g", leader.member_id, rejoined.generation, None)
    world.clock.advance(1)
    assert world.groups.heartbeat("g", leader.member_id, 2, None) is ErrorCode.rebalance_in_progress


async def test_a_group_continues_after_a_restart_without_a_rebalance(world):
    member = await world.stable(instance="i")
    after = world.restart()
    assert after.groups.heartbeat("g", member.member_id, 1, "i") is ErrorCode.none
    synced = await after.groups.sync(sync_request(member.member_id, 1))
    assert synced.assignment == b"work"
    described = after.groups.describe("g")
    assert described is not None
    assert described == world.groups.describe("g")


async def test_members_get_a_full_session_timeout_after_a_restart(world):
    member = await world.stable()
    world.clock.advance(SESSION_MS - 1)
    after = world.restart()
    after.clock.advance(SESSION_MS - 1)
    assert after.groups.heartbeat("g", member.member_id, 1, None) is ErrorCode.none
    after.clock.advance(SESSION_MS)
    assert after.state() is GroupState.EMPTY


async def test_an_empty_group_survives_a_restart_with_its_generation(world):
    member = await world.stable()
    world.groups.leave("g", [MemberIdentity(member_id=member.member_id)])
    after = world.restart()
    assert after.state() is GroupState.EMPTY
    assert (await after.joined()).generation == 3


async def test_a_group_that_only_commits_survives_a_restart(world):
    world.commit("simple")
    after = world.restart()
    assert after.state("simple") is GroupState.EMPTY
    assert after.groups.list()[0].protocol_type == ""


async def test_a_static_member_rejoins_after_a_restart_of_the_broker(world):
    await world.stable(instance="i")
    after = world.restart()
    back = await after.groups.join(join_request(instance="i"))
    assert (back.generation, back.skip_assignment) == (1, True)
    assert (await after.groups.sync(sync_request(back.member_id, 1, instance="i"))).assignment == b"work"


async def test_a_group_above_a_lowered_limit_rebalances_after_a_restart(world):
    first = await world.stable()
    assigned = await world.groups.join(join_request())
    second = asyncio.create_task(world.groups.join(join_request(assigned.member_id)))
    await turn()
    await world.groups.join(join_request(first.member_id))
    await second
    await world.groups.sync(sync_request(first.member_id, 2))
    small = GroupCoordinator(world.log, world.offsets, world.clock, GroupSettings(max_size=1))
    small.load()
    assert small.heartbeat("g", first.member_id, 2, None) is ErrorCode.rebalance_in_progress
    kept = asyncio.create_task(small.join(join_request(first.member_id)))
    await turn()
    refused = await small.join(join_request(assigned.member_id))
    assert refused.error is ErrorCode.group_max_size_reached
    assert (await kept).generation == 3


async def test_a_draining_broker_serves_members_and_rejects_joins(world):
    member = await world.stable()
    world.groups.drain()
    assert (await world.groups.join(join_request())).error is ErrorCode.not_coordinator
    assert (await world.groups.sync(sync_request(member.member_id, 1))).error is ErrorCode.not_coordinator
    assert world.groups.heartbeat("g", member.member_id, 1, None) is ErrorCode.none
    check = world.groups.check_commit
    assert check("g", member.member_id, 1, None, transactional=False) is ErrorCode.none


async def test_close_fails_pending_requests_with_not_coordinator(world):
    leader = await world.stable()
    assigned = await world.groups.join(join_request())
    waiting = asyncio.create_task(world.groups.join(join_request(assigned.member_id)))
    await turn()
    world.groups.close()
    assert (await waiting).error is ErrorCode.not_coordinator
    assert world.clock.pending == 0
    assert world.restart().groups.heartbeat("g", leader.member_id, 1, None) is ErrorCode.none


class FullDisk(MemoryStateLog):
    """A log that rejects appends while `is_full`."""

    is_full = False

    def append(self, records, producer=None) -> None:
        if self.is_full:
            raise DiskError("no space left: free some, and try again")
        super().append(records, producer)


async def test_an_assignment_that_cannot_be_stored_is_not_sent():
    log = FullDisk()
    world = World(log)
    member = await world.joined()
    log.is_full = True
    sync = sync_request(member.member_id, 1, {member.member_id: b"work"})
    assert (await world.groups.sync(sync)).error is ErrorCode.coordinator_not_available
    assert world.state() is GroupState.PREPARING_REBALANCE
    log.is_full = False
    again = await world.groups.join(join_request(member.member_id))
    assert (again.error, again.generation) == (ErrorCode.none, 2)


class SlowDisk(MemoryStateLog):
    """A log whose records become durable when the test sets `flushed`."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed = asyncio.Event()

    async def durable(self) -> None:
        await self.flushed.wait()


async def test_an_assignment_is_durable_before_the_leader_gets_its_response():
    log = SlowDisk()
    log.flushed.set()
    world = World(log)
    member = await world.joined()
    log.flushed.clear()
    sync = asyncio.create_task(world.groups.sync(sync_request(member.member_id, 1)))
    await turn()
    assert not sync.done()
    log.flushed.set()
    assert (await sync).error is ErrorCode.none


async def test_a_described_group_shows_members_with_subscription_and_assignment(world):
    member = await world.stable(instance="i")
    described = world.groups.describe("g")
    assert described is not None
    assert (described.state, described.protocol_type, described.protocol) == (
        GroupState.STABLE,
        "consumer",
        "range",
    )
    (shown,) = described.members
    assert (shown.member_id, shown.instance_id, shown.client_id) == (member.member_id, "i", "c")
    assert (shown.client_host, shown.metadata, shown.assignment) == (
        "/127.0.0.1",
        subscription("t"),
        b"work",
    )


async def test_a_group_between_generations_shows_no_protocol_and_no_subscriptions(world):
    await world.joined()
    described = world.groups.describe("g")
    assert described is not None
    assert (described.state, described.protocol) == (GroupState.COMPLETING_REBALANCE, "")
    assert [member.metadata for member in described.members] == [b""]


async def test_groups_are_listed_by_name(world):
    await world.stable(group_id="b")
    world.commit("a")
    assert [(group.group_id, group.state) for group in world.groups.list()] == [
        ("a", GroupState.EMPTY),
        ("b", GroupState.STABLE),
    ]


async def test_a_deleted_group_is_gone_with_its_offsets_also_after_a_restart(world):
    world.commit("g")
    assert world.groups.delete("g") is ErrorCode.none
    for place in (world, world.restart()):
        assert place.groups.describe("g") is None
        assert place.offsets.get("g", "t", 0) is None


async def test_a_group_with_members_cannot_be_deleted(world):
    await world.stable()
    assert world.groups.delete("g") is ErrorCode.non_empty_group
    assert world.groups.delete("other") is ErrorCode.group_id_not_found


async def test_members_commit_with_their_generation(world):
    member = await world.stable(instance="i")
    check = world.groups.check_commit
    assert check("g", member.member_id, 1, "i", transactional=False) is ErrorCode.none
    assert check("g", member.member_id, 0, None, transactional=False) is ErrorCode.illegal_generation
    assert check("g", "c-other", 1, None, transactional=False) is ErrorCode.unknown_member_id
    assert check("g", "i-other", 1, "i", transactional=False) is ErrorCode.fenced_instance_id


async def test_clients_that_are_not_members_commit_only_while_the_group_is_empty(world):
    check = world.groups.check_commit
    assert check("g", "", -1, None, transactional=False) is ErrorCode.none
    await world.stable()
    assert check("g", "", -1, None, transactional=False) is ErrorCode.unknown_member_id
    assert check("g", "", -1, None, transactional=True) is ErrorCode.none


async def test_commits_during_a_completing_rebalance_are_rejected_unless_transactional(world):
    member = await world.joined()
    check = world.groups.check_commit
    assert check("g", member.member_id, 1, None, transactional=False) is ErrorCode.rebalance_in_progress
    assert check("g", member.member_id, 1, None, transactional=True) is ErrorCode.none


async def test_commits_of_the_last_generation_are_accepted_while_the_next_is_prepared(world):
    member = await world.stable()
    assigned = await world.groups.join(join_request())
    waiting = asyncio.create_task(world.groups.join(join_request(assigned.member_id)))
    await turn()
    check = world.groups.check_commit
    assert check("g", member.member_id, 1, None, transactional=False) is ErrorCode.none
    waiting.cancel()


async def test_a_commit_with_a_generation_of_a_missing_group_is_rejected(world):
    check = world.groups.check_commit
    assert check("g", "c-1", 1, None, transactional=False) is ErrorCode.group_id_not_found
    assert check("g", "c-1", 1, None, transactional=True) is ErrorCode.illegal_generation


async def test_transactional_commits_are_checked_against_the_group(world):
    member = await world.stable()
    check = world.offsets.check_transactional_commit
    assert check("g", member.member_id, 1, None) is ErrorCode.none
    assert check("g", member.member_id, 7, None) is ErrorCode.illegal_generation
    assert check("", "", -1, None) is ErrorCode.invalid_group_id


async def test_offsets_may_be_deleted_when_no_member_reads_the_topic(world):
    await world.stable()
    assert world.groups.check_offset_delete("g") is ErrorCode.none
    assert world.groups.is_subscribed("g", "t")
    assert not world.groups.is_subscribed("g", "other")


async def test_offsets_of_a_group_of_another_protocol_type_cannot_be_deleted_while_it_has_members(world):
    await world.stable(protocol_type="connect")
    assert world.groups.check_offset_delete("g") is ErrorCode.non_empty_group
    assert world.groups.check_offset_delete("other") is ErrorCode.group_id_not_found


async def test_offsets_expire_a_week_after_the_last_member_left(world):
    member = await world.stable(session_ms=1_800_000)
    world.offsets.commit("g", {("t", 0): CommittedOffset(offset=1, committed_at_ms=world.clock.now_ms())})
    for _ in range(WEEK_MS // 1_000_000):
        world.clock.advance(1_000_000)
        world.groups.heartbeat("g", member.member_id, 1, None)
    world.groups.leave("g", [MemberIdentity(member_id=member.member_id)])
    world.clock.advance(WEEK_MS - 1)
    assert world.offsets.get("g", "t", 0) is not None
    world.clock.advance(CHECK_MS + 1)
    assert world.offsets.get("g", "t", 0) is None
    assert world.groups.describe("g") is None
    assert world.restart().groups.list() == []


async def test_offsets_of_a_group_that_only_commits_expire_a_week_after_the_commit(world):
    world.commit("g")
    world.clock.advance(WEEK_MS - 1)
    world.commit("g", topic="u")
    world.clock.advance(CHECK_MS + 1)
    assert world.offsets.get("g", "t", 0) is None
    assert world.offsets.get("g", "u", 0) is not None


async def test_an_expiry_time_set_by_an_old_client_is_respected(world):
    world.commit("g")
    early = CommittedOffset(offset=1, committed_at_ms=0, expires_at_ms=world.clock.now_ms() + 1_000)
    world.offsets.commit("g", {("t", 0): early})
    world.clock.advance(CHECK_MS)
    assert world.offsets.get("g", "t", 0) is None


async def test_offsets_that_a_transaction_holds_do_not_expire(world):
    world.commit("g")
    world.offsets.add_pending(Producer(7, 0), "g", {("t", 0): CommittedOffset(offset=9)})
    world.clock.advance(WEEK_MS + CHECK_MS)
    assert world.offsets.get("g", "t", 0) is not None
    world.offsets.complete(7, committed=False)
    world.clock.advance(CHECK_MS)
    assert world.groups.describe("g") is None


async def test_a_group_without_members_and_offsets_is_removed(world):
    await world.groups.join(join_request())
    world.clock.advance(CHECK_MS)
    assert world.groups.list() == []


@pytest.mark.parametrize(
    "build",
    [
        lambda: GroupSettings(min_session_timeout_ms=0),
        lambda: GroupSettings(max_size=0),
        lambda: GroupSettings(min_session_timeout_ms=10, max_session_timeout_ms=9),
    ],
)
def test_invalid_settings_are_rejected(build: Callable[[], GroupSettings]):
    with pytest.raises(InvalidGroupSettings):
        build()
