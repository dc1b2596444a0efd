"""Load generators and real clients, each a process of its own that is spoken to in JSON lines."""
