"""A cloud on one machine: nodes that are announced to go, and go, as a recorded trace says."""
