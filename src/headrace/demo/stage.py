"""A live picture, and the director behind it, who is called with every turn of the supervisor."""

from __future__ import annotations

import time
from abc import abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING

from headrace.streams.display import Board

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from headrace.streams.report import Report


class Phase(Enum):
    """Where an act is."""

    WAITING = auto()
    WARMING = auto()
    RUNNING = auto()
    DRAINING = auto()
    DONE = auto()


class Stage(Board):
    """What an act shows, phase after phase; the picture is drawn as soon as there is a stage."""

    def __init__(self, console: Console) -> None:
        self._phase = Phase.WAITING
        self._since_s = time.monotonic()
        self.stop: Callable[[], None] = lambda: None
        """How the run is ended; set when there is one."""
        super().__init__(console)

    @property
    def is_over(self) -> bool:
        """Whether it was played to its end."""
        return self._phase is Phase.DONE

    def show(self, reports: Sequence[Report]) -> None:
        """Show the figures, and play on."""
        super().show(reports)
        self._direct(time.monotonic() - self._since_s)

    @abstractmethod
    def _direct(self, passed_s: float) -> None:
        """Do what is due after so many seconds of the phase."""

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since_s = phase, time.monotonic()

    def _end(self, text: str) -> None:
        self.say(text)
        self._enter(Phase.DONE)
        self.stop()
