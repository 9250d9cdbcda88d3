"""The programs of other systems: each runs in an environment of its own, and imports only what is there."""
