"""Indexed Jobs of Kubernetes (batch/v1)."""
