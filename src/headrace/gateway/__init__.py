"""The HTTP gateway: events and OpenTelemetry data in, change feeds, topics and views out."""
