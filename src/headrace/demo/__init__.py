"""What there is, shown: a small shop on a real broker, with a crash in the middle and a check at the end."""
