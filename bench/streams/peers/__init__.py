"""The programs of other systems, each in its own environment with its own dependencies."""
