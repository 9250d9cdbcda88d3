"""After kill -9 only unaccepted messages are delivered again, and each dead letter is written once."""

import random
import time
from datetime import timedelta
from pathlib import Path

from headrace import queue
from headrace.broker.shares.dead_letters import dead_letter_topic
from headrace.client.cluster import Cluster
from headrace.client.share_groups import share_progress
from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.wire_client import WireClient, batch_of
from tests.soak.queue_storm import QueueStorm, ride_out

IDLE = timedelta(seconds=2)


def values(broker: BrokerProcess, topic: str, group: str) -> list[tuple[bytes | None, int]]:
    messages = queue(topic, group=group, broker=broker.address, idle_timeout=IDLE)
    return [(message.value, message.deliveries) for message in messages]


def left_over(broker: BrokerProcess, group: str) -> int:
    with Cluster.of(broker.address) as cluster:
        return sum(part.lag for part in share_progress(cluster, group))


def test_a_share_group_continues_after_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("orders")
            client.produce("orders", batch_of(*(b"%d" % number for number in range(8))))
        taken = iter(queue("orders", group="mailer", broker=broker.address, prefetch=8))
        for message in taken:
            number = message.offset
            if number == 2:
                message.release(delay="0 s")
            elif number == 4:
                message.reject()
            elif number == 6:
                break  # it and 7 are in the worker's hands when the broker dies
        wait_until(lambda: left_over(broker, "mailer") == 3, "what was said to be heard")
        broker.restart()
        taken.close()  # type: ignore[attr-defined]  # a generator
        left = values(broker, "orders", "mailer")
        assert [value for value, _ in left] == [b"2", b"6", b"7"]
        assert left[0][1] == 2  # deliveries that ended are remembered
        dead = values(broker, dead_letter_topic("orders", "mailer"), "undertaker")
        assert [value for value, _ in dead] == [b"4"]


def test_the_delay_of_a_release_survives_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("orders")
            client.produce("orders", batch_of(b"later", timestamp=round(1000 * time.time())))
        released_at = time.time()
        for message in queue("orders", group="g", broker=broker.address):
            message.release(delay="3 seconds")
            break
        broker.restart()
        for message in queue("orders", group="g", broker=broker.address):
            assert (message.value, message.deliveries) == (b"later", 2)
            assert time.time() - released_at >= 3
            message.accept()
            break
        assert values(broker, "orders", "g") == []


def test_settings_of_a_group_survive_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("orders")
            client.produce("orders", batch_of(b"poison"))
        settings = {"share.delivery.count.limit": "1"}
        for message in queue("orders", group="g", broker=broker.address, settings=settings):
            message.release()
            break
        broker.restart()
        assert values(broker, "orders", "g") == []
        assert len(values(broker, dead_letter_topic("orders", "g"), "undertaker")) == 1


def test_under_crashes_every_message_is_processed_and_every_dead_letter_is_written_once(
    tmp_path: Path,
) -> None:
    storm = QueueStorm(messages=200, kills=2, seed=random.randrange(2**32))
    with BrokerProcess(tmp_path / "data") as broker:
        ride_out(storm, broker)
