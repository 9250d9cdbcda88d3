"""The names of dead-letter topics."""

import doctest
import importlib

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.shares.dead_letters import dead_letter_topic
from headrace.broker.topics import check_name


@given(st.text(min_size=1, max_size=300), st.from_regex(r"[a-zA-Z0-9._-]{3,200}", fullmatch=True))
def test_every_group_has_a_valid_dead_letter_topic(group: str, topic: str) -> None:
    check_name(dead_letter_topic(topic, group))


def test_groups_with_ids_that_are_invalid_as_topic_names_have_different_topics() -> None:
    assert dead_letter_topic("orders", "a b") != dead_letter_topic("orders", "a/b")
    module = importlib.import_module("headrace.broker.shares.dead_letters")
    assert doctest.testmod(module).failed == 0
