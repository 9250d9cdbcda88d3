"""Programs of those that the event store is compared with, for environments of their own."""
