"""Dead letters on their way back: records to the topic that they came from, rows to the target.

All letters that were sent again are one transaction with the place up to which that was done, so that none is
sent twice. Rows for a target are written before it, with a mark of their own in the target: their number is
the offset of the last letter. Where a target has no place for marks, they are in a journal next to the job's
checkpoints, so that another machine that has these does not send a row twice.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.client.bootstrap import produce
from headrace.errors import HeadraceError, Misuse
from headrace.sinks.sink import RowsRejected, SinkContext
from headrace.sinks.staging import StagedBatch
from headrace.streams.job_folder import JobFolder
from headrace.streams.outputs import folder_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.sinks.sink import Sink
    from headrace.streams.app import App
    from headrace.streams.job import Job

PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that a job could not read, or a row that a target did not take."""

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] = field(repr=False)

    @property
    def reason(self) -> str:
        """Why it is here."""
        return self._text("reason")

    @property
    def topic(self) -> str | None:
        """The topic that it was read from; None of a row that a target did not take."""
        return self._text("topic") or None

    @property
    def target(self) -> str | None:
        """The sink that did not take it; None of a record that was not read."""
        return self._text("target") or None

    @property
    def table(self) -> str | None:
        """The captured outbox whose row cannot be a message; None of all others."""
        return self._text("table") or None

    @property
    def row(self) -> bytes:
        """The row as a stream of Arrow's."""
        return self.headers.get("row", b"")

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        if self.topic is not None:
            return f"{self.topic}/{self._text('partition')} at {self._text('offset')}"
        if self.table is not None:
            return f"{self.table} at {self._text('lsn')}"
        return f"{self.target or 'unknown'}, batch {self._text('batch')}"

    def _text(self, name: str) -> str:
        return self.headers.get(name, b"").decode(errors="replace")


def group_of(topic: str) -> str:
    """The consumer group whose offsets say up to where the letters of a topic were sent again."""
    return f"headrace.redrive.{topic}"


class RedriveFailed(HeadraceError):
    """The broker did not take the letters back; none was sent."""


@dataclass(slots=True)
class Redriven:
    """What became of letters."""

    sent: Counter[str] = field(default_factory=Counter)
    """How many went where."""
    refused: list[tuple[DeadLetter, str]] = field(default_factory=list)
    """Those that their target refused again, and why: they are dead letters once more."""


def redrive(
    letters: Sequence[DeadLetter],
    topic: str,
    *,
    config: Mapping[str, Any],
    app: App | None,
    state: Path,
    checkpoints: str | None = None,
) -> Redriven:
    """Send letters of a topic again, all of them or none; `config` is that of librdkafka's clients.

    `checkpoints` is where those of the job are, if not in the state folder.
    """
    outcome = Redriven()
    if tables := {letter.table for letter in letters if letter.table}:
        raise Misuse(
            f"{topic} holds rows of the outbox {min(tables)}: insert them there again, corrected. "
            "Nothing was sent."
        )
    job = _job(letters, topic, app)
    for partition in sorted({letter.partition for letter in letters}):
        there = [letter for letter in letters if letter.partition == partition]
        for target in sorted({letter.target for letter in there if letter.target}):
            assert job is not None
            mine = [letter for letter in there if letter.target == target]
            name = f"{job.name}.redrive-{partition}"
            folder = JobFolder.of(state, job.app, name, checkpoints=checkpoints)
            _to_target(_sink(job, target), mine, folder, state, outcome)
    _to_topics(letters, topic, config, outcome)
    return outcome


def _job(letters: Sequence[DeadLetter], topic: str, app: App | None) -> Job | None:
    if not any(letter.target for letter in letters):
        return None
    if app is None:
        raise Misuse(
            f"{topic} holds rows that a target did not take: name the file that defines the job, so that "
            "they can be given to its target again."
        )
    jobs = {job.dead_topic: job for job in app.jobs}
    if topic not in jobs:
        raise Misuse(f"no job of {app.name!r} has its dead letters in {topic}: name the file that has it.")
    return jobs[topic]


def _sink(job: Job, target: str) -> Sink:
    sinks = {sink.name: sink for sink in job.into.sinks}
    if target not in sinks:
        raise Misuse(
            f"there are letters for {target!r}, and the job {job.name!r} writes into {job.into.name}: "
            "declare the output again, or read the letters with `headrace dead show`."
        )
    return sinks[target]


def _to_target(
    sink: Sink, letters: Sequence[DeadLetter], folder: JobFolder, state: Path, outcome: Redriven
) -> None:
    """Write the rows of letters of one partition, without those that an interrupted try has written."""
    tables = [pa.ipc.open_stream(letter.row).read_all() for letter in letters]
    rows = pa.concat_tables(tables, promote_options="permissive")
    first, last = letters[0], letters[-1]
    place = SinkContext(
        job=f"{folder.app}.{folder.name}",
        generation=first.time_ms,
        schema=rows.schema,
        folder=folder_of(folder.outputs, sink),
        state=state,
    )
    with closing(sink.open(place)) as target:
        newest = target.last_batch()
        waiting = [index for index, letter in enumerate(letters) if newest is None or letter.offset >= newest]
        while waiting:
            try:
                target.commit(last.offset + 1, StagedBatch.of(rows.take(pa.array(waiting))))
                break
            except RowsRejected as fault:
                refused = {waiting[index]: reason for index, reason in fault.rows.items()}
                outcome.refused += [(letters[index], reason) for index, reason in refused.items()]
                waiting = [index for index in waiting if index not in refused]
    outcome.sent[sink.name] += len(waiting)


def _to_topics(
    letters: Sequence[DeadLetter], topic: str, config: Mapping[str, Any], outcome: Redriven
) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    group = group_of(topic)
    consumer = Consumer({**config, "group.id": group, "enable.auto.commit": False})
    producer = Producer({**config, "transactional.id": group})
    ends = {letter.partition: letter.offset + 1 for letter in letters}
    try:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for letter in letters:
            # A batch that could not be read has no bytes here: it is in its topic still.
            if letter.topic is not None and letter.value is not None:
                produce(producer, letter.topic, key=letter.key, value=letter.value)
                outcome.sent[letter.topic] += 1
        for letter, reason in outcome.refused:
            headers = {**letter.headers, "reason": reason.encode()}
            produce(producer, topic, key=letter.key, value=letter.value, headers=list(headers.items()))
        places = [TopicPartition(topic, number, end) for number, end in ends.items()]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), PATIENCE_S)
        producer.commit_transaction(PATIENCE_S)
    except KafkaException as fault:
        raise RedriveFailed(f"the letters of {topic!r} were not sent: {fault.args[0].str()}.") from fault
    finally:
        consumer.close()
