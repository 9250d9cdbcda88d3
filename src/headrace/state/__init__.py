"""The state store: sorted Arrow runs with a manifest for each micro-batch."""
