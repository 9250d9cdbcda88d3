"""Commands a second of the event store, beside the library `eventsourcing` on SQLite and PostgreSQL."""
