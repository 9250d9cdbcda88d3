"""Topics whose positions are journaled with each batch, although no row of them goes through Spark.

What keeps a copy of such a topic takes from the journal up to where the copy has to go for a batch, so that a
repeated batch finds the copy as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.errors import UnknownPartition
from headrace.spark.offset_reader import OffsetReader
from headrace.spark.positions import part_of
from headrace.spark.subscription import Subscription

if TYPE_CHECKING:
    from headrace.spark.positions import Positions, TopicIds
    from headrace.spark.source_settings import SourceSettings


class Following:
    """The followed topics of one source; one that is absent does not make its query fail."""

    def __init__(self, settings: SourceSettings) -> None:
        # What is read is followed already.
        self.topics = tuple(topic for topic in settings.follow if topic not in settings.subscription.topics)
        self._offset_reader = OffsetReader(
            settings.link,
            Subscription(topics=self.topics),
            read_committed=settings.read_committed,
            fail_on_data_loss=settings.fail_on_data_loss,
        )
        self._target: Positions | None = None

    @property
    def topic_ids(self) -> TopicIds:
        """The ids of the followed topics that exist."""
        return self._offset_reader.topic_ids

    def recreated(self, ids: TopicIds) -> set[str]:
        """The followed topics that have another id than `ids` says: a copy of the old one is not theirs."""
        return self._offset_reader.recreated(ids)

    def beginnings(self) -> Positions:
        """Where a new query begins: a copy needs all that is there."""
        return self._offset_reader.beginnings(self._latest({}).keys()) if self.topics else {}

    def freeze(self) -> None:
        """Let the end of all that is there be the end for good."""
        self._target = self._latest({}) if self.topics else {}

    def ends(self, begun: Positions) -> Positions:
        """Where the next batch ends; a partition that is gone keeps its place."""
        if not self.topics:
            return {}
        followed = part_of(begun, self.topics)
        return followed | (self._latest(followed) if self._target is None else self._target)

    def _latest(self, known: Positions) -> Positions:
        try:
            return self._offset_reader.latest(known)
        except UnknownPartition:
            return {}
