"""Stateful model test of groups: arbitrary joins, leaves, crashes and restarts, with invariants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from headrace.broker.groups import GroupCoordinator, GroupSettings
from headrace.broker.groups.group import GroupState
from headrace.broker.groups.messages import MemberIdentity
from headrace.broker.groups.records import read_group, read_key
from headrace.broker.offsets import CommittedOffsets
from headrace.broker.state_log import MemoryStateLog, StateRecord
from tests.broker.groups.harness import join_request, sync_request
from tests.broker.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from headrace.broker.groups.messages import JoinResponse, RequestId, SyncResponse

SESSION_MS = 10_000
FIRST_DELAY_MS = 500
REBALANCE_MS = 20_000
NEWCOMER_MS = 60_000
UUID_CHARACTERS = 37
PROTOCOLS = {
    "both": (("range", b"r"), ("sticky", b"s")),
    "reversed": (("sticky", b"s"), ("range", b"r")),
    "range": (("range", b"r"),),
}


def place(member_id: str) -> str:
    """The instance id of a static member, which survives new member ids, or the id of a dynamic member."""
    name = member_id[:-UUID_CHARACTERS]
    return member_id if name == "c" else name


def work(generation: int, member_id: str) -> bytes:
    """The assignment of one member in one generation, different from all others."""
    return f"{generation}:{place(member_id)}".encode()


async def let_everything_run() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


class WatchedGroups(GroupCoordinator):
    """A coordinator that fails the test if a request gets two responses."""

    def __init__(self, log: MemoryStateLog, clock: VirtualClock, limits: GroupSettings) -> None:
        super().__init__(log, CommittedOffsets(log, clock, limits), clock, limits)
        self.answered: set[RequestId] = set()

    def _respond(self, request_id: RequestId, reply: JoinResponse | SyncResponse) -> None:
        assert request_id not in self.answered, "a request got two responses"
        self.answered.add(request_id)
        super()._respond(request_id, reply)


class Client:
    """A consumer that follows the last response, as real clients do."""

    def __init__(self, instance: str | None, version: int, protocols: str) -> None:
        self.instance = instance
        self.version = version
        self.protocols = PROTOCOLS[protocols]
        self.member_id = ""
        self.generation = -1
        self.waiting: asyncio.Task[Any] | None = None
        self.turn = 0
        """Counts its requests: the client follows only the response to the last one."""
        self.owes_sync: JoinResponse | None = None
        """Its last join, until it has synced."""
        self.is_fenced = False


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock()
        self.log = MemoryStateLog()
        self.limits = GroupSettings(
            initial_rebalance_delay_ms=FIRST_DELAY_MS, new_member_join_timeout_ms=NEWCOMER_MS
        )
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.is_over = False
        self.start_broker()

    def start_broker(self) -> None:
        self.clock = VirtualClock(self.clock.now_ms())  # without the timers of the crashed broker
        self.groups = WatchedGroups(self.log, self.clock, self.limits)
        self.groups.load()
        self.latest_generation = 0
        self.chosen: dict[int, tuple[str | None, str]] = {}

    # Actions of clients

    @initialize(count=st.integers(1, 3))
    def begin_with_a_stable_group(self, count: int) -> None:
        for _ in range(count):
            self.start_a_client(None, 9, "both")
        self.let_everybody_catch_up()
        described = self.groups.describe("g")
        assert described is not None
        assert (described.state, len(described.members)) == (GroupState.STABLE, count)

    @precondition(lambda self: len(self.clients) < 6)
    @rule(
        instance=st.sampled_from([None, None, "a", "b"]),
        version=st.sampled_from([3, 5, 9]),
        protocols=st.sampled_from(sorted(PROTOCOLS)),
    )
    def start_a_client(self, instance: str | None, version: int, protocols: str) -> None:
        """With an instance id that is in use this is a restart of a static member."""
        client = Client(instance if version >= 5 else None, version, protocols)
        self.clients.append(client)
        self.join(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def send_a_heartbeat(self, data: st.DataObject) -> None:
        self.heartbeat(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: any(client.owes_sync for client in self.clients))
    @rule(data=st.data())
    def ask_for_an_assignment(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.owes_sync]))
        self.sync(client)

    @rule()
    def let_everybody_catch_up(self) -> None:
        """Every client does what it does between two heartbeats, until the group is stable."""
        for client in list(self.clients):
            self.heartbeat(client)
        self.let_time_pass(2 * FIRST_DELAY_MS)  # the initial delay and one extension
        for client in list(self.clients):
            if client.owes_sync is not None:
                self.sync(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), is_lost=st.booleans())
    def join_again(self, data: st.DataObject, is_lost: bool) -> None:
        """An earlier join or sync may still be pending, with or without its connection."""
        client = data.draw(st.sampled_from(self.clients))
        if is_lost:
            self.abandon(client)
        self.join(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Clients with pending requests go first: these must get responses."""
        waiting = [client for client in self.clients if client.waiting is not None]
        client = data.draw(st.sampled_from(waiting or self.clients))
        self.clients.remove(client)
        client.turn += 1  # the client ignores responses that are still pending
        self.groups.leave("g", [MemberIdentity(member_id=client.member_id, instance_id=client.instance)])
        self.run_ready()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.abandon(client)

    @rule(ms=st.sampled_from([0, 1, 400, 3_000, 9_999, 10_000, 20_000]))
    def let_time_pass(self, ms: int) -> None:
        self.clock.advance(ms)
        self.run_ready()

    @rule()
    def crash_and_restart_the_broker(self) -> None:
        stored_before, before = self.stored_generation(), self.groups.describe("g")
        for task in self.tasks:
            task.cancel()
        for client in self.clients:
            client.waiting = None
        self.run_ready()
        self.start_broker()
        assert self.stored_generation() == stored_before
        if before is not None and before.state is GroupState.STABLE:
            assert self.groups.describe("g") == before
        for client in self.clients:
            if not client.is_fenced:
                self.join(client)

    # Invariants

    @invariant()
    def no_place_is_taken_twice_and_leaders_are_members(self) -> None:
        described = self.groups.describe("g")
        if described is None:
            return
        places = [place(member.member_id) for member in described.members]
        assert len(places) == len(set(places))
        assert (described.state is GroupState.EMPTY) <= (not described.members)

    def teardown(self) -> None:
        try:
            self.check_the_end()
            self.groups.close()
        finally:
            self.loop.close()

    def check_the_end(self) -> None:
        """All clients crash: pending requests get responses, and the group is empty after all sessions."""
        self.is_over = True
        for wait_ms in (NEWCOMER_MS, REBALANCE_MS, REBALANCE_MS, SESSION_MS):
            self.clock.advance(wait_ms)
            self.run_ready()
        assert self.tasks == [], "a request was never answered"
        described = self.groups.describe("g")
        assert described is None or described.state is GroupState.EMPTY

    # How clients handle responses

    def heartbeat(self, client: Client) -> None:
        if client.waiting is not None:
            return
        error = self.groups.heartbeat("g", client.member_id, client.generation, client.instance)
        self.obey(client, error)
        if client.member_id == "" and not client.is_fenced:
            self.join(client)

    def join(self, client: Client) -> None:
        request = join_request(
            client.member_id,
            instance=client.instance,
            version=client.version,
            protocols=client.protocols,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        self.ask(client, self.take_join(client, request))

    async def take_join(self, client: Client, request: Any) -> None:
        turn = client.turn
        reply = await self.groups.join(request)
        if client.turn != turn:
            return
        client.waiting = None
        if reply.error is ErrorCode.none:
            client.member_id, client.generation = reply.member_id, reply.generation
            self.check_generation(reply)
            client.owes_sync = reply
        elif reply.error is ErrorCode.member_id_required:
            client.member_id = reply.member_id
            self.join(client)
        else:
            self.obey(client, reply.error)

    def sync(self, client: Client) -> None:
        joined, client.owes_sync = client.owes_sync, None
        assert joined is not None
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        given = {each.member_id: work(joined.generation, each.member_id) for each in joined.members}
        request = sync_request(
            client.member_id, client.generation, given if leads else {}, instance=client.instance
        )
        self.ask(client, self.take_sync(client, request))

    async def take_sync(self, client: Client, request: Any) -> None:
        turn = client.turn
        reply = await self.groups.sync(request)
        if client.turn != turn:
            return
        client.waiting = None
        if reply.error is ErrorCode.none:
            assert reply.assignment == work(client.generation, client.member_id)
        else:
            self.obey(client, reply.error)

    def obey(self, client: Client, error: ErrorCode) -> None:
        """Rejoin; a client that got this error from a join waits for its next heartbeat."""
        if error is ErrorCode.fenced_instance_id:
            client.is_fenced = True
            if client in self.clients:
                self.clients.remove(client)
        elif error in {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}:
            client.member_id, client.generation = "", -1
        elif error is ErrorCode.rebalance_in_progress and client.waiting is None:
            self.join(client)
        else:
            assert error in {
                ErrorCode.none,
                ErrorCode.rebalance_in_progress,
                ErrorCode.inconsistent_group_protocol,
            }

    def check_generation(self, reply: JoinResponse) -> None:
        """All members of a generation have one protocol and one leader; generations only increase."""
        assert reply.generation >= self.latest_generation
        self.latest_generation = reply.generation
        chosen = (reply.protocol, place(reply.leader))
        assert self.chosen.setdefault(reply.generation, chosen) == chosen
        if reply.members:
            described = self.groups.describe("g")
            assert described is not None
            now = {member.member_id for member in described.members}
            places = [place(member.member_id) for member in reply.members]
            assert len(places) == len(set(places))
            assert reply.member_id in {member.member_id for member in reply.members}
            assert described.state is not GroupState.STABLE or now == {m.member_id for m in reply.members}

    # Helpers

    def ask(self, client: Client, request: Coroutine[Any, Any, None]) -> None:
        if self.is_over:
            request.close()
            return
        client.turn += 1
        client.owes_sync = None
        client.waiting = self.loop.create_task(request)
        self.tasks.append(client.waiting)
        self.run_ready()

    def abandon(self, client: Client) -> None:
        """The connection is closed: the response is dropped."""
        if client.waiting is not None:
            client.waiting.cancel()
            client.waiting = None
            self.run_ready()

    def run_ready(self) -> None:
        if not self.loop.is_running():
            self.loop.run_until_complete(let_everything_run())
            done = [task for task in self.tasks if task.done()]
            self.tasks = [task for task in self.tasks if not task.done()]
            for task in done:
                assert task.cancelled() or task.result() is None

    def stored_generation(self) -> int:
        groups = [
            read_group(entry.value)
            for entry in self.log.entries
            if isinstance(entry, StateRecord) and read_key(entry.key) == "g" and entry.value is not None
        ]
        generations = [group.generation for group in groups]
        assert generations == sorted(generations)
        return max(generations, default=0)


TestGroups = GroupModel.TestCase
TestGroups.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)
