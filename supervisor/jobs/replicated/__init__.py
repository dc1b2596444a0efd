"""Kinds whose jobs are replicas by role, without a launcher, which a field of their spec suspends."""
