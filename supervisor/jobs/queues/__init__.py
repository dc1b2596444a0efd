"""Queues that decide when a job may run. Each has a folder, and works with every kind of job."""
