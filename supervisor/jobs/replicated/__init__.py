"""Kinds whose jobs are replicas by role, which their spec suspends."""
