"""Client programs that generate load, each in its own process."""
