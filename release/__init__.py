"""Builds everything that is published of a version, the same bytes each time, and publishes nothing."""
