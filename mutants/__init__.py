"""Breaks the product on purpose, in many ways, and demands that the demo and the replay fail for each of them."""
