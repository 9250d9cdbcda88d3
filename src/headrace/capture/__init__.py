"""Change data capture: the committed changes of a database as events, each transaction exactly once.

`capture` fences the previous process, reads its offset, lets the source take snapshots and stream changes,
and commits records together with offsets. `source` is the interface to a database; `postgres` implements it.
"""
