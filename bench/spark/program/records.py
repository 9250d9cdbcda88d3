"""The records that are read: JSON with 500 devices and an hour of event time."""

SCHEMA = "device string, reading double, at timestamp, note string"
DEVICES = 500
"""How many keys a window is grouped by."""
