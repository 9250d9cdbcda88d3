"""Client programs that put load on a system, each run in a process of its own."""
