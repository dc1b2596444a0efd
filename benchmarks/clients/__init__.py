"""Load generators and real clients. Each is a process that exchanges JSON lines with the harness."""
