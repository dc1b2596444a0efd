"""The common parts of the scenarios: a supervisor, its clients, and measurements."""
