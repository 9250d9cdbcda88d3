"""Outputs of jobs other than topics: databases, caches, search indexes, webhooks and e-mail.

A user declares a `Sink`; `SinkDelivery` opens its `SinkWriter`, which writes rows batch by batch, and stores
the number of the batch in the same transaction as the rows. So a batch that is repeated after a crash is
written once. Nothing here imports Spark: rows are Arrow tables.
"""
