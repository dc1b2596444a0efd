"""Adds up where the worker-seconds of jobs go."""
