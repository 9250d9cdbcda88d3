"""Local copies of tables: every version of every row, kept in sorted files that tasks map into memory.

A table is a topic. Its copy holds what the topic said about each key, and since when; the driver brings it up
to date before a micro-batch, and tasks look up the version that counted at the time of an event. Nothing here
knows Spark.
"""
