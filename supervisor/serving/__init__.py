"""The servers of a supervisor, and the health that its probes report."""
