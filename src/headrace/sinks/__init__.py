"""Outputs besides topics: databases, caches, search indexes, and people.

What a user declares is a `Sink`; the connection that it opens is a `Target`. A target takes a job's rows
batch by batch and remembers, in the same transaction as the rows, which batch it has: so a batch that is
repeated after a crash is written once. Nothing here knows Spark: rows come as Arrow.
"""
