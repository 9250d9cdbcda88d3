"""Programs of the systems that the event store is compared with, for their own environments."""
