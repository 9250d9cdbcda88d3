"""What happens when producers are faster than consumers: a topic's bound, and its policy there."""
