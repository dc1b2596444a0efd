"""Durable facts and decisions behind one interface: SQLite stand-alone, custom resources on a cluster."""
