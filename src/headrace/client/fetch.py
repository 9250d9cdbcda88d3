"""Record batches of one partition as the broker holds them: whole, raw, and on their way ahead of the reader.

    for piece in PartitionReader(cluster, TopicPartition("orders", 0), 0, 1_000_000):
        work_on(piece.batches, piece.aborted)

The request for the next piece leaves before the caller gets this one, so that the broker reads and the
network carries while the caller works. Nothing here looks into a batch beyond its header; checksums are the
business of whoever opens it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client.error_codes import LEADER_CHANGED
from headrace.client.errors import BrokerUnreachable, OffsetsGone, ReadStalled, RequestRefused
from headrace.client.fetch_messages import API_KEY, VERSION, Answer, measure_batches, pack_fetch, read_answer
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.retry import attempts
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.cluster import Cluster
    from headrace.client.connection import Connection
    from headrace.client.partition import TopicPartition

__all__ = ["Fetched", "OffsetsGone", "PartitionReader"]

FETCH_BYTES: Final = 4 << 20
EMPTY_ANSWERS: Final = 2
"""So many answers without a record, although the partition goes on, and the rest of it is a gap."""


class Fetched(NamedTuple):
    """Whole batches that follow one another, and what is needed to read them."""

    batches: memoryview
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of each aborted transaction that reaches into the batches or follows."""
    next_offset: int
    """Where the next piece begins."""
    log_start_offset: int


class Flight(NamedTuple):
    """A request that was sent and not yet answered."""

    connection: Connection
    ticket: int


class PartitionReader:
    """The batches of one partition that hold the offsets from `start` up to, not including, `end`.

    The first and the last batch may reach over them. Leaders that move and brokers that restart are waited
    for; a partition that gives nothing for the cluster's timeout is an error. An iterator may be dropped
    half-way.
    """

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        read_committed: bool = True,
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._start = start
        self._end = end
        self._read_committed = read_committed
        self._fetch_bytes = fetch_bytes

    def __iter__(self) -> Iterator[Fetched]:
        position = self._start
        flight = None
        try:
            while position < self._end:
                piece = self._next_piece(position, flight)
                flight = None
                position = piece.next_offset
                if position < self._end:
                    flight = self._send_ahead(position)
                if piece.batches:
                    yield piece
        finally:
            if flight is not None:
                flight.connection.forget(flight.ticket)

    def _next_piece(self, position: int, flight: Flight | None) -> Fetched:
        """Something that goes beyond `position`; `flight` is the request for it if there is one already."""
        empty_answers = 0
        reason = ""
        for _ in attempts(self._cluster.timeout_s):
            try:
                answer = self._receive(flight or self._send(position))
            except BrokerUnreachable as fault:
                reason = str(fault)
                self._cluster.refresh()
                continue
            finally:
                flight = None
            if answer.code is not ErrorCode.none:
                reason = f"the broker answers {answer.code.name}"
                self._look_after(answer.code, position)
                continue
            piece = self._piece(answer)
            if piece.next_offset > position:
                return piece
            reason = self._describe_end(answer)
            empty_answers += self._is_gap(answer)
            if empty_answers == EMPTY_ANSWERS:
                return piece._replace(next_offset=self._end)
        raise ReadStalled(
            f"{self._partition} gave nothing from offset {position} on for {self._cluster.timeout_s:g} s, "
            f"and it was to be read up to {self._end}: {reason}"
        )

    def _send_ahead(self, position: int) -> Flight | None:
        try:
            return self._send(position)
        except HeadraceError:
            return None  # the caller gets its piece first; the fault, if it stays, comes with the next one

    def _send(self, position: int) -> Flight:
        connection = self._cluster.leader(self._partition)
        request = pack_fetch(
            self._partition,
            position,
            max_bytes=self._fetch_bytes,
            read_committed=self._read_committed,
        )
        return Flight(connection, connection.post(API_KEY, VERSION, [request]))

    def _receive(self, flight: Flight) -> Answer:
        return read_answer(flight.connection.collect(flight.ticket))

    def _piece(self, answer: Answer) -> Fetched:
        size, next_offset = measure_batches(answer.records, self._end)
        return Fetched(answer.records[:size], answer.aborted, next_offset, answer.log_start_offset)

    def _look_after(self, code: ErrorCode, position: int) -> None:
        """Return when asking again may help; raise when it cannot."""
        if code is ErrorCode.offset_out_of_range:
            self._check_range(position)
        elif code not in LEADER_CHANGED:
            raise RequestRefused(f"read {self._partition} from offset {position}", code)
        self._cluster.refresh()

    def _check_range(self, position: int) -> None:
        # A leader that has just been elected may not know yet how far its log is valid: ask, then judge.
        ends = [
            list_offsets(self._cluster, {self._partition: which}, read_committed=False)[self._partition]
            for which in (EARLIEST, LATEST)
        ]
        if not ends[0] <= position <= ends[1]:
            raise OffsetsGone(self._partition, position, ends[0], ends[1])

    def _is_gap(self, answer: Answer) -> bool:
        """Whether the partition reaches to our end and yet has no batch left before it.

        Compaction leaves such gaps. An answer may also be empty because of a quota.
        """
        return not answer.records and not answer.throttle_ms and self._readable_end(answer) >= self._end

    def _readable_end(self, answer: Answer) -> int:
        return answer.last_stable_offset if self._read_committed else answer.high_watermark

    def _describe_end(self, answer: Answer) -> str:
        if self._read_committed and answer.last_stable_offset < answer.high_watermark:
            return f"a transaction that is still open keeps readers at offset {answer.last_stable_offset}"
        return f"the partition ends at offset {answer.high_watermark}"
