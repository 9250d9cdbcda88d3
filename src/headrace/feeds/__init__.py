"""Change feeds: the current rows of a view and every later change, in Python or over HTTP.

A feed reads the log with Headrace's own client, not with librdkafka, because it must notice missing records:
a change that compaction removed leaves a gap in the offsets, which only the raw batches show.
"""
