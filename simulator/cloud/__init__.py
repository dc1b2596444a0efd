"""A cloud on one machine, whose nodes are reclaimed as in a recorded trace."""
