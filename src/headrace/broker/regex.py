"""Regular expressions that match in linear time, as RE2 does.

Python's `re` backtracks, which takes exponential time for expressions such as `(a|aa)*b`. Here Python's
parser parses an expression, which is then compiled to a nondeterministic finite automaton. A match follows
all paths at once, and caches transitions between sets of states. Expressions without such an automaton
(back-references, look-around, atomic groups) are rejected, as in RE2; word boundaries, too, which RE2
supports.
"""

from __future__ import annotations

import re
from re import _constants as opcodes  # type: ignore[attr-defined]  # the parser is typed nowhere
from re import _parser as parser  # type: ignore[attr-defined]  # the parser is typed nowhere
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

MAX_CHARACTERS: Final = 249
"""The maximum length of an expression."""
MAX_STATES: Final = 1_000
"""The maximum size of an automaton: a counted repetition copies its content."""
MAX_CACHED: Final = 1_000
"""Cached transitions between sets of states."""
STEP_STATES: Final = 2_000
"""States that a match visits in one step: about half a millisecond."""

_MATCH: Final = 0
_CATEGORIES: Final[Mapping[Any, re.Pattern[str]]] = {
    opcodes.CATEGORY_DIGIT: re.compile(r"\d"),
    opcodes.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    opcodes.CATEGORY_SPACE: re.compile(r"\s"),
    opcodes.CATEGORY_NOT_SPACE: re.compile(r"\S"),
    opcodes.CATEGORY_WORD: re.compile(r"\w"),
    opcodes.CATEGORY_NOT_WORD: re.compile(r"\W"),
}


class InvalidExpression(ValueError):
    """Not a regular expression, or one that cannot be matched in linear time."""


class _State(NamedTuple):
    """A state that consumes one character if `accepts` returns True; without `accepts` it consumes none."""

    following: tuple[int, ...]
    accepts: Callable[[str], bool] | None = None
    only_at: Any = None
    """The position in the text, start or end, at which the state may be passed."""


class Regex:
    """A compiled expression."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise InvalidExpression(
                f"the expression has {len(text)} characters; the maximum is {MAX_CHARACTERS}"
            )
        try:
            parsed = parser.parse(text)
        except (re.error, RecursionError, OverflowError) as fault:
            raise InvalidExpression(f"{text!r} is not a regular expression: {fault}") from fault
        self._ignores_case = bool(parsed.state.flags & re.IGNORECASE)
        self._states = [_State(())]
        self._built = 0
        self._first = self._build(parsed, _MATCH)
        self._cache: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def match_steps(self, text: str) -> Generator[None, None, bool]:
        """Whether the whole text matches; yields between steps."""
        states = frozenset((self._first,))
        visited = 0
        for position, character in enumerate(text):
            following = self._cache.get((states, character)) if position else None
            if following is None:
                following = self._advance(states, character, is_start=not position)
                visited += len(self._states)
            if not following:
                return False
            states = following
            visited += 1
            if visited >= STEP_STATES:
                visited = 0
                yield
        return _MATCH in self._reach(states, is_start=not text, is_end=True)

    def _advance(self, states: frozenset[int], character: str, *, is_start: bool) -> frozenset[int]:
        """The states after the next character."""
        reached = (self._states[number] for number in self._reach(states, is_start=is_start, is_end=False))
        following = frozenset(
            state.following[0] for state in reached if state.accepts is not None and state.accepts(character)
        )
        if not is_start:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[states, character] = following
        return following

    def _reach(self, states: Iterable[int], *, is_start: bool, is_end: bool) -> set[int]:
        """The states that are reachable without consuming a character."""
        passable = {None: True, opcodes.AT_BEGINNING: is_start, opcodes.AT_END: is_end}
        reached: set[int] = set()
        waiting = list(states)
        while waiting:
            number = waiting.pop()
            if number not in reached:
                reached.add(number)
                state = self._states[number]
                if state.accepts is None and passable[state.only_at]:
                    waiting += state.following
        return reached

    # ---------------------------------------------------------------- building

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise _too_large()
        self._states.append(state)
        return len(self._states) - 1

    def _build(self, parsed: Any, following: int) -> int:
        """The first state of a sequence that ends in `following`."""
        self._built += 1
        if self._built > MAX_STATES:
            raise _too_large()
        for code, argument in reversed(list(parsed)):
            following = self._build_part(code, argument, following)
        return following

    def _build_part(self, code: Any, argument: Any, following: int) -> int:
        if code in _CHARACTERS:
            return self._add(_State((following,), self._any_case(_CHARACTERS[code](argument))))
        if code is opcodes.BRANCH:
            return self._add(_State(tuple(self._build(part, following) for part in argument[1])))
        if code is opcodes.SUBPATTERN and not argument[1] and not argument[2]:
            return self._build(argument[3], following)
        if code in (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT):
            least, most, repeated = argument
            return self._build_repetition(repeated, least, most, following)
        if code is opcodes.AT and argument in (opcodes.AT_BEGINNING, opcodes.AT_END):
            return self._add(_State((following,), only_at=argument))
        raise InvalidExpression(f"{code} cannot be matched in linear time: remove it from the expression")

    def _build_repetition(self, parsed: Any, least: int, most: Any, following: int) -> int:
        if most is opcodes.MAXREPEAT:
            loop = self._add(_State(()))
            self._states[loop] = _State((self._build(parsed, loop), following))
            following = loop
        else:
            end = following
            for _ in range(most - least):
                following = self._add(_State((self._build(parsed, following), end)))
        for _ in range(least):
            following = self._build(parsed, following)
        return following

    def _any_case(self, accepts: Callable[[str], bool]) -> Callable[[str], bool]:
        if not self._ignores_case:
            return accepts
        return lambda character: accepts(character.lower()) or accepts(character.upper())


def _too_large() -> InvalidExpression:
    return InvalidExpression(f"the expression needs more than {MAX_STATES} states: use smaller repetitions")


def _literal(code: int) -> Callable[[str], bool]:
    return chr(code).__eq__


def _not_literal(code: int) -> Callable[[str], bool]:
    return chr(code).__ne__


def _any(_: None) -> Callable[[str], bool]:
    return "\n".__ne__


def _one_of(items: list[tuple[Any, Any]]) -> Callable[[str], bool]:
    is_negated = items[0][0] is opcodes.NEGATE
    tests = [_item(code, argument) for code, argument in items[is_negated:]]
    return lambda character: any(test(character) for test in tests) is not is_negated


def _item(code: Any, argument: Any) -> Callable[[str], bool]:
    if code is opcodes.LITERAL:
        return _literal(argument)
    if code is opcodes.RANGE:
        low, high = argument
        return lambda character: low <= ord(character) <= high
    matches = _CATEGORIES[argument].match
    return lambda character: matches(character) is not None


_CHARACTERS: Final[Mapping[Any, Callable[[Any], Callable[[str], bool]]]] = {
    opcodes.LITERAL: _literal,
    opcodes.NOT_LITERAL: _not_literal,
    opcodes.ANY: _any,
    opcodes.IN: _one_of,
}
