"""What a broker keeps for long is not walked by every full garbage collection, and still freed."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker import scheduling
from headrace.broker.state_log import MemoryStateLog
from headrace.broker.topics import Topics
from headrace.storage.folder import DataFolder
from tests.broker.virtual_clock import VirtualClock

PARTITIONS = 1_000


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    thresholds = gc.get_threshold()
    scheduling.freeze_growth()
    yield
    gc.callbacks.remove(scheduling.freeze_survivors)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_partitions_that_survive_a_full_collection_are_frozen_and_go_with_their_topic(tmp_path: Path) -> None:
    topics = Topics(DataFolder(tmp_path), VirtualClock())
    topics.load(MemoryStateLog())
    topic = topics.create("wide", PARTITIONS, {})
    gc.collect()
    assert len(gc.get_objects(scheduling.FULL_COLLECTION)) < scheduling.MANY_OBJECTS
    logs = [weakref.ref(partition.log) for partition in topic.partitions]
    del topic
    topics.delete("wide")
    assert not any(log() for log in logs)
