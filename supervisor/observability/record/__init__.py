"""Keeps what has happened for weeks, in a database of its own that no decision waits for."""
