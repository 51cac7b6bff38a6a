"""The schema's history; the service runs it when it starts."""
