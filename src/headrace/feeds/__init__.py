"""Reading views: what they hold now, and every change after it, from any Python program or over HTTP.

A feed reads the log through our own client and not through librdkafka, because it has to notice what is *not*
there: a change that compaction removed leaves a gap in the offsets, and only the raw batches show it.
"""
