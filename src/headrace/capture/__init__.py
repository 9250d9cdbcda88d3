"""Change data capture: what a database commits, as events in topics, each transaction once and whole.

`capture` orchestrates: it fences whoever ran before, reads how far they came, has the source take snapshots
and follow the database's log, and commits what the source writes together with the progress. What is said
here of databases is the small seam `source`; all of PostgreSQL is in `postgres`.
"""
