"""Overflow policies: what happens when producers are faster than consumers and a topic is full."""
