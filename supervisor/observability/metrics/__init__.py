"""Counts and measures for Prometheus."""
