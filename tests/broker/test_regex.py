"""Expressions that are matched in linear time give the answers of Python's own."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.regex import InvalidExpression, Regex
from headrace.protocol.wire import run_steps

ATOMS = ["a", "b", ".", "[ab]", "[^a]", "[0-9x]", "(a|b)", "(a|ab)", "(?:b|)", r"\d", r"\w", r"\S"]
REPEATS = ["", "", "*", "+", "?", "{2}", "{1,3}", "*?"]
parts = st.one_of(
    st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS)).map("".join), st.sampled_from("^$")
)
expressions = st.lists(parts, min_size=1, max_size=5).map("".join)


def matches(pattern: str, text: str) -> bool:
    return run_steps(Regex(pattern).match_steps(text))


@given(expressions, st.text("abx1 ", max_size=8))
def test_an_expression_matches_what_python_matches(pattern: str, text: str) -> None:
    assert matches(pattern, text) is (re.fullmatch(pattern, text) is not None)


def test_letters_match_in_any_case_when_the_expression_says_so() -> None:
    assert matches("(?i)orders-[a-c]+", "Orders-ABC")


@pytest.mark.parametrize("pattern", ["(a|aa)" * 40 + "b", "(a*)*b", "a*a*a*a*a*b", "(a?){50}a{50}b"])
def test_a_match_visits_each_state_once_for_each_character(pattern: str) -> None:
    text = "a" * 2_000
    steps = sum(1 for _ in Regex(pattern).match_steps(text))
    assert steps <= len(text)


@pytest.mark.parametrize(
    "pattern",
    ["(", r"(a)\1", "(?=a)a", "(?>a)", r"\ba", "a{2000}", "(){1000000000}", "((){900}){900}", "a" * 250],
)
def test_an_expression_without_a_small_automaton_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidExpression):
        Regex(pattern)
