"""Traces of reclaims: what happened from a notice to its outcome, as spans for a collector. Nothing waits for it."""
