"""The demo: a small shop on a real broker, with crashes, and checks of the results."""
