"""Throughput of the event store, compared with the library `eventsourcing` on SQLite and PostgreSQL."""
