"""Elects the supervisor that takes streams, decides and acts, if a cluster has several."""
