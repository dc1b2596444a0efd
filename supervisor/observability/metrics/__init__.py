"""The metrics for Prometheus: counts events and measures times."""
