"""The node agent: asks whether this node is about to be reclaimed, and tells the supervisor at once."""
