"""The status page: read-only, for browsers with a viewer token."""
