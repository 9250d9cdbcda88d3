"""Damaged frames of every API for minutes: the broker answers or closes, and serves the other clients."""

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.broker.processes import BrokerProcess
from tests.broker.test_hostile_bytes import BATCH, EVERY_VERSION, mutate
from tests.broker.wire_client import WireClient, pack_request
from tests.protocol.entities import INT32_MAX, requests, scalars

KINDS = ["cut inside", "bits", "int32", "varint", "insert", "shuffle"]
SECONDS = 180


def samples(number: int) -> list[bytes]:
    """A few well-formed requests of every API and version."""
    found: list[bytes] = []

    @seed(number)
    @given(st.data())
    @settings(max_examples=3, database=None, deadline=None)
    def collect(data: st.DataObject) -> None:
        for api in EVERY_VERSION:
            entity = data.draw(requests(*api, scalars([0, 1, INT32_MAX], [b"", BATCH])))
            found.append(pack_request(*api, entity))

    collect()
    return found


@pytest.mark.soak
def test_the_broker_outlives_minutes_of_damaged_frames(tmp_path: Path) -> None:
    chance = random.Random(7)
    frames = samples(7)
    with BrokerProcess(tmp_path / "data") as kafka, WireClient(kafka.address) as client:
        client.create_topic("steady")
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            with WireClient(kafka.address) as stranger:
                stranger.send_bytes(
                    mutate(chance.choice(frames), chance.choice(KINDS), chance.randrange(2**32))
                )
            assert client.produce("steady", BATCH).error_code is ErrorCode.none
        assert kafka.is_running
        assert "Traceback" not in kafka.errors, kafka.errors[-4000:]
