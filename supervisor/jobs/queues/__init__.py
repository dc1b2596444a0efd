"""Queues that decide when a job may run. Each works with every kind of job."""
