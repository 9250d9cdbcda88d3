"""Stateful model test: producers, crashes, lost responses and timeouts; transactions stay atomic.

Clients of both protocols and their zombies send requests that advance step by step between one another. The
broker may die before any write to its state log or to a partition, also while it recovers. What must hold is
compared with the response that each client got.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from headrace.broker.state_log import MemoryStateLog, Producer
from headrace.broker.transactions import TransactionCoordinator, TransactionSettings
from headrace.broker.transactions.coordinator import OFFSETS
from headrace.broker.transactions.records import (
    read_key,
    read_value,
    write_key,
    write_next_producer_id,
    write_value,
)
from headrace.broker.transactions.transaction import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    ProducerFenced,
    TopicPartition,
    TransactionError,
    TransactionMetadata,
    TransactionState,
)
from headrace.storage.producers import ProducerStateError
from tests.broker.transactions.listed_partitions import ListedPartitions, Marker, Write
from tests.broker.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

PARTITIONS = [TopicPartition("a", 0), TopicPartition("b", 1), OFFSETS]
NAMES = ["fresh", "worn"]
TIMEOUT_MS = 10_000
FENCING = {ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping}
SETTINGS = TransactionSettings(cleanup_interval_ms=2_000)

someone = st.integers(0, 2)
some_partitions = st.sets(st.sampled_from(PARTITIONS), min_size=1)
hurry = st.sampled_from([True, True, False])
"""Whether a request runs to its end at once, or in steps."""
lives = st.sampled_from([None, None, None, 0, 1, 2, 3, 4])
"""Writes before the broker crashes; None if it does not."""


class Crash(BaseException):
    """The broker crashes here."""


class Fuse:
    """Raises before the n-th write from now."""

    def __init__(self) -> None:
        self.charges: list[int] = []

    def burn(self) -> None:
        if self.charges:
            self.charges[0] -= 1
            if self.charges[0] < 0:
                del self.charges[0]
                raise Crash


@types.coroutine
def pause() -> Generator[None, None, None]:
    """A point at which other requests can continue."""
    yield


class PausingLog(MemoryStateLog):
    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self.fuse = fuse

    def append(self, records, producer=None) -> None:
        self.fuse.burn()
        super().append(records, producer)

    async def durable(self) -> None:
        await pause()


class PausingPartitions(ListedPartitions):
    async def durable(self) -> None:
        await pause()


def finish(request: Coroutine[Any, Any, Any]) -> Any:
    """The result of a request that runs without interruption."""
    while True:
        try:
            request.send(None)
        except StopIteration as done:
            return done.value


@dataclass(eq=False)
class Attempt:
    """One transaction as its client sees it: its writes, and the response to its end."""

    values: list[int] = field(default_factory=list)
    wanted: bool | None = None
    """The outcome that the client requested; None before."""
    reported: bool | None = None
    """The outcome in the response to the client."""


@dataclass(eq=False)
class Request:
    """A request in flight: the broker's coroutine, and the handler of its response."""

    work: Coroutine[Any, Any, Any]
    client: Client | None
    answered: Callable[[Any], None]
    was_fenced: bool


@dataclass(eq=False)
class Client:
    name: str
    protocol: int
    producer: Producer | None = None
    is_fenced: bool = False
    """A newer producer has received its epoch: no request of this one may be accepted."""
    is_alive: bool = True
    is_blameless: bool = False
    """No newer producer has started and its timeout has not passed: the broker must not fence it."""
    since_ms: int = 0
    is_waiting: bool = False
    attempt: Attempt | None = None


class TransactionsModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock, self.fuse = VirtualClock(), Fuse()
        self.log = PausingLog(self.fuse)
        self.partitions = PausingPartitions(*PARTITIONS, before_write=self.fuse.burn)
        self._seed_worn_id()
        self.clients: list[Client] = []
        self.attempts: list[Attempt] = []
        self.running: list[Request] = []
        self.epochs: dict[str, Producer] = {}
        self.producer_ids: dict[int, str] = {}
        self.written = 0
        self.transactions = self._boot()

    def _seed_worn_id(self) -> None:
        """A transactional id with almost exhausted epochs: its producer id changes during the test."""
        worn = TransactionMetadata(
            transactional_id="worn",
            producer_id=5,
            epoch=32_764,
            timeout_ms=TIMEOUT_MS,
            state=TransactionState.COMPLETE_COMMIT,
            updated_ms=self.clock.now_ms(),
        )
        self.log.append([write_next_producer_id(1000), (write_key("worn"), write_value(worn))])

    def _boot(self) -> TransactionCoordinator:
        transactions = TransactionCoordinator(self.log, self.clock, self.partitions, SETTINGS)
        transactions.load()
        return transactions

    # Requests

    def send(
        self,
        work: Coroutine[Any, Any, Any],
        client: Client | None,
        answered: Callable[[Any], None] = lambda _: None,
        *,
        hurry: bool = False,
    ) -> None:
        if client is not None:
            client.is_waiting = True
        request = Request(work, client, answered, client is not None and client.is_fenced)
        self.running.append(request)
        self.advance(request)
        while hurry and request in self.running:
            self.advance(request)

    def advance(self, request: Request) -> None:
        try:
            request.work.send(None)
        except StopIteration as done:
            assert not request.was_fenced
            self.running.remove(request)
            self.free(request.client)
            request.answered(done.value)
        except TransactionError as fault:
            self.running.remove(request)
            self.free(request.client)
            self.refused(request.client, fault)
        except Crash:
            self.crash()

    @staticmethod
    def free(client: Client | None) -> None:
        if client is not None:
            client.is_waiting = False

    @staticmethod
    def refused(client: Client | None, fault: TransactionError) -> None:
        assert client is not None
        assert isinstance(fault, ProducerFenced | InvalidProducerIdMapping | ConcurrentTransactions), repr(
            fault
        )
        if not isinstance(fault, ConcurrentTransactions):
            assert not client.is_blameless
            client.is_alive = False

    def usable(self, index: int) -> Client | None:
        """One of the clients that may send a request, newer producers first."""
        free = [known for known in self.clients if known.is_alive and known.producer and not known.is_waiting]
        return free[-1 - index % len(free)] if free else None

    # Rules: clients

    @initialize(fresh=st.sampled_from([1, 2]), worn=st.sampled_from([1, 2]))
    def start_the_first_clients(self, fresh: int, worn: int) -> None:
        self.start_client("fresh", fresh, hurry=True)
        self.start_client("worn", worn, hurry=True)

    @rule(name=st.sampled_from(NAMES), protocol=st.sampled_from([1, 2]), hurry=hurry)
    def start_client(self, name: str, protocol: int, hurry: bool) -> None:
        if len([known for known in self.clients if known.is_alive and known.name == name]) > 2:
            return
        client = Client(name, protocol)
        self.clients.append(client)
        self.blame(name)
        self.send(
            self.transactions.initialize(name, TIMEOUT_MS),
            client,
            lambda producer: self.started(client, producer),
            hurry=hurry,
        )

    def learned(self, client: Client, producer: Producer) -> None:
        """The client received this epoch: older epochs are fenced. Producer ids only increase."""
        client.producer = producer
        client.since_ms = self.clock.now_ms()
        peers = [known for known in self.clients if known.name == client.name and known.producer]
        newest = max(known.producer for known in peers)
        for known in peers:
            known.is_fenced = known.producer != newest

    def started(self, client: Client, producer: Producer) -> None:
        self.learned(client, producer)
        others = [known for known in self.clients if known.name == client.name and known.is_waiting]
        client.is_blameless = not client.is_fenced and not others

    def blame(self, name: str) -> None:
        for known in self.clients:
            if known.name == name:
                known.is_blameless = False

    @rule(index=someone, hurry=hurry)
    def recover_client(self, index: int, hurry: bool) -> None:
        client = self.usable(index)
        if client is None or (client.attempt and client.attempt.wanted is not None):
            return
        self.blame(client.name)
        self.send(
            self.transactions.initialize(client.name, TIMEOUT_MS, client.producer),
            client,
            lambda producer: self.recovered(client, producer),
            hurry=hurry,
        )

    def recovered(self, client: Client, producer: Producer) -> None:
        assert producer != client.producer
        self.started(client, producer)
        if client.attempt is not None:
            client.attempt.reported, client.attempt = False, None

    @rule(index=someone, partitions=some_partitions, hurry=hurry)
    def add_partitions(self, index: int, partitions: set[TopicPartition], hurry: bool) -> None:
        client = self.usable(index)
        if client is None or client.protocol == 2 or not self.may_write(client):
            return
        assert client.producer is not None
        self.send(
            self.transactions.add_partitions(client.name, client.producer, partitions),
            client,
            lambda _: self.begin(client),
            hurry=hurry,
        )

    @staticmethod
    def may_write(client: Client) -> bool:
        return client.attempt is None or client.attempt.wanted is None

    def begin(self, client: Client) -> Attempt:
        if client.attempt is None:
            client.attempt = Attempt()
            self.attempts.append(client.attempt)
        return client.attempt

    @rule(index=someone, partitions=some_partitions, newer=st.booleans())
    def write(self, index: int, partitions: set[TopicPartition], newer: bool) -> None:
        client = self.usable(index)
        if client is None or not self.may_write(client):
            return
        version = (11 if newer else 9) if client.protocol == 1 else 12
        try:
            for partition in sorted(partitions):
                if self.produce(client, partition, version):
                    assert not client.is_fenced
                    self.begin(client).values.append(self.written)
                    self.written += 1
        except Crash:
            self.crash()

    def produce(self, client: Client, partition: TopicPartition, version: int) -> bool:
        """A batch is checked by the coordinator, then appended to the log."""
        assert client.producer is not None
        if not self.partitions.has_open(*partition, client.producer.producer_id):
            code = self.transactions.check_produce(client.name, *client.producer, *partition, version)
            if code:
                assert not client.is_blameless or code not in FENCING
                return False
        try:
            self.partitions.write(*partition, Write(*client.producer, self.written))
        except ProducerStateError:
            assert not client.is_blameless
            return False
        return True

    @rule(index=someone, committed=st.sampled_from([True, True, False]), hurry=hurry, lives=lives)
    def end(self, index: int, committed: bool, hurry: bool, lives: int | None) -> None:
        client = self.usable(index)
        if client is None or client.attempt is None:
            return
        if lives is not None:
            self.fuse.charges = [lives]
        attempt = client.attempt
        # A client that got no answer asks for the same again.
        attempt.wanted = committed if attempt.wanted is None else attempt.wanted
        assert client.producer is not None
        self.send(
            self.transactions.end(
                client.name, client.producer, committed=attempt.wanted, bump=client.protocol == 2
            ),
            client,
            lambda producer: self.ended(client, attempt, producer),
            hurry=hurry,
        )

    def ended(self, client: Client, attempt: Attempt, producer: Producer) -> None:
        if client.protocol == 2:
            assert producer != client.producer
        self.learned(client, producer)
        attempt.reported, client.attempt = attempt.wanted, None

    @rule(
        index=someone,
        partitions=some_partitions,
        committed=st.sampled_from([True, True, False]),
        hurry=hurry,
        lives=lives,
    )
    def transact(
        self, index: int, partitions: set[TopicPartition], committed: bool, hurry: bool, lives: int | None
    ) -> None:
        """A complete transaction, which random single steps rarely produce."""
        self.add_partitions(index, partitions, hurry=True)
        self.write(index, partitions, newer=True)
        self.end(index, committed, hurry, lives)

    # Rules: what happens to them

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 3))
    def step(self, index: int) -> None:
        self.advance(self.running[index % len(self.running)])

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 3))
    def lose_answer(self, index: int) -> None:
        request = self.running.pop(index % len(self.running))
        request.work.close()
        self.free(request.client)
        if request.client is not None and request.client.producer is None:
            request.client.is_alive = False

    @rule(ms=st.sampled_from([1_000, 2_000, TIMEOUT_MS + 1]), hurry=hurry)
    def let_time_pass(self, ms: int, hurry: bool) -> None:
        self.clock.advance(ms)
        for client in self.clients:
            if self.clock.now_ms() - client.since_ms > TIMEOUT_MS:
                client.is_blameless = False
        self.send(self.transactions.run_maintenance(), None, hurry=hurry)

    @rule(charges=st.lists(st.integers(0, 6), min_size=1, max_size=2))
    def light_the_fuse(self, charges: list[int]) -> None:
        self.fuse.charges = charges.copy()

    @rule()
    def crash(self) -> None:
        before = {known.transactional_id: known for known in self.transactions.list_all()}
        while self.running:
            self.lose_answer(0)
        while True:
            self.transactions = self._boot()
            known = {known.transactional_id: known for known in self.transactions.list_all()}
            assert known == before
            try:
                finish(self.transactions.run_maintenance())
            except Crash:
                before = {known.transactional_id: known for known in self.transactions.list_all()}
            else:
                return

    # What must hold

    @invariant()
    def an_epoch_never_goes_back_and_no_producer_id_is_shared(self) -> None:
        for known in self.transactions.list_all():
            name, last = known.transactional_id, self.epochs.get(known.transactional_id)
            if last is None or last.producer_id != known.producer_id:
                assert known.producer_id not in self.producer_ids
                self.producer_ids[known.producer_id] = name
            else:
                assert known.epoch >= last.epoch
            self.epochs[name] = known.producer

    @invariant()
    def what_a_client_was_told_is_what_readers_see(self) -> None:
        outcomes = self.partitions.outcomes()
        for attempt in self.attempts:
            if attempt.reported is not None:
                assert {outcomes[value] for value in attempt.values} <= {attempt.reported}

    @invariant()
    def nothing_is_committed_that_nobody_asked_to_commit(self) -> None:
        outcomes = self.partitions.outcomes()
        for attempt in self.attempts:
            if not attempt.wanted:
                assert True not in {outcomes[value] for value in attempt.values}

    def every_completed_transaction_has_its_marker_in_every_partition(self) -> None:
        """The epoch of a marker fences idempotent writers, also in partitions without records."""
        prepared: dict[str, TransactionMetadata] = {}
        for entry in self.log.entries:
            name = read_key(entry.key)
            if name is None or entry.value is None:
                continue
            state = read_value(name, entry.value)
            if state.is_prepared:
                prepared[name] = state
            elif name in prepared:
                ended = prepared.pop(name)
                for partition in ended.partitions:
                    assert Marker(*ended.producer, ended.is_committed) in self.partitions.markers(*partition)

    def teardown(self) -> None:
        """All clients stop: after the timeouts every transaction has one outcome, and readers continue."""
        self.fuse.charges = []
        self.crash()
        self.clock.advance(TIMEOUT_MS + 1)
        finish(self.transactions.run_maintenance())
        assert list(self.partitions.open_transactions()) == []
        assert not any(known.is_active for known in self.transactions.list_all())
        outcomes = self.partitions.outcomes()
        for attempt in self.attempts:
            assert len({outcomes[value] for value in attempt.values}) <= 1
        self.every_completed_transaction_has_its_marker_in_every_partition()


TestTransactionsModel = TransactionsModel.TestCase
TestTransactionsModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
