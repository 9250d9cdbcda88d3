"""Which jobs feed which: a job whose topic another one reads comes before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def stages(inputs: Mapping[str, tuple[str, ...]], outputs: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The jobs in stages: all that a job reads was written by earlier stages, or by nobody here.

    Jobs that feed each other in a circle come last, together.

    >>> stages({"a": ("orders",), "b": ("paid", "orders"), "c": ("x",)}, {"a": ["paid"], "b": ["x"], "c": []})
    [['a'], ['b'], ['c']]
    """
    waiting = dict(inputs)
    result: list[list[str]] = []
    while waiting:
        pending = {topic for job in waiting for topic in outputs[job]}
        ready = [job for job, topics in waiting.items() if pending.isdisjoint(topics)] or list(waiting)
        result.append(ready)
        for job in ready:
            del waiting[job]
    return result
